"""FAUST as a scikit-learn estimator. It works in memory and writes no files."""

from faustnet.estimator.classifier import FaustClassifier
from faustnet.estimator.settings import BadInput

__all__ = ["BadInput", "FaustClassifier"]
