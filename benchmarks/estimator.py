"""Compare FaustClassifier with scikit-learn's MLPClassifier, both with default parameters, on data of scikit-learn.

    python benchmarks/estimator.py results/estimator.json      a few minutes, on one thread

Both classifiers use the same folds of a stratified 5-fold cross-validation, repeated three times with different folds.
MLPClassifier follows a StandardScaler. The defaults of FaustClassifier were chosen among about twenty settings by their
mean accuracy on the data sets in CHOSEN_ON, on the folds of the first repetition. The results on wine and breast cancer
were also known at that time.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.base import ClassifierMixin
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_gaussian_quantiles,
    make_moons,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from faustnet import FaustClassifier
from faustnet.system.environment import environment

Table = tuple[np.ndarray, np.ndarray]
FOLDS, REPETITIONS = 5, 3
CHOSEN_ON = ("iris", "diabetes in thirds", "4 classes", "noisy", "imbalanced", "60 samples", "quantiles")
CLASSIFIERS: dict[str, Callable[[int], ClassifierMixin]] = {
    "FaustClassifier": lambda seed: FaustClassifier(random_state=seed),
    "MLPClassifier": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
}


def tables() -> dict[str, Table]:
    """Return the data sets by name: inputs (n, d) and labels (n,)."""
    measurements, progression = load_diabetes(return_X_y=True)
    thirds = np.digitize(progression, np.quantile(progression, [1 / 3, 2 / 3]))
    return {
        "digits": load_digits(return_X_y=True),
        "wine": load_wine(return_X_y=True),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "iris": load_iris(return_X_y=True),
        "diabetes in thirds": (measurements, thirds),
        "4 classes": make_classification(1000, 20, n_informative=8, n_classes=4, random_state=0),
        "noisy": make_classification(600, 40, n_informative=5, flip_y=0.1, random_state=1),
        "imbalanced": make_classification(1000, 15, n_informative=6, weights=[0.9], random_state=4),
        "60 samples": make_classification(60, 10, n_informative=4, random_state=3),
        "quantiles": make_gaussian_quantiles(n_samples=800, n_features=6, n_classes=3, random_state=0),
        "moons": make_moons(500, noise=0.25, random_state=0),
    }


def measure(x: np.ndarray, y: np.ndarray, repetitions: int = REPETITIONS) -> dict[str, dict[str, float]]:
    """Return the mean test accuracy, the mean log loss and the median fit time of each classifier."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CLASSIFIERS}
    for repetition in range(repetitions):
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=repetition)
        for train, test in folds.split(x, y):
            for name, make in CLASSIFIERS.items():
                classifier = make(repetition)
                begin = time.perf_counter()
                classifier.fit(x[train], y[train])
                seconds = time.perf_counter() - begin
                loss = log_loss(y[test], classifier.predict_proba(x[test]))
                found[name].append((classifier.score(x[test], y[test]), loss, seconds))
    return {
        name: {
            "accuracy": float(np.mean([accuracy for accuracy, _, _ in runs])),
            "log_loss": float(np.mean([loss for _, loss, _ in runs])),
            "fit_seconds": float(np.median([seconds for _, _, seconds in runs])),
        }
        for name, runs in found.items()
    }


def compare() -> dict[str, Any]:
    about = environment(torch.device("cpu"), seed=0) | {"scikit-learn": sklearn.__version__, "numpy": np.__version__}
    measure(*tables()["iris"], repetitions=1)  # the first fit of a process takes longer
    return {
        "environment": about,
        "folds": FOLDS,
        "repetitions": REPETITIONS,
        "tables": {
            name: {
                "samples": len(y),
                "columns": x.shape[1],
                "classes": len(np.unique(y)),
                "defaults_chosen_on_it": name in CHOSEN_ON,
                **measure(x, y),
            }
            for name, (x, y) in tables().items()
        },
    }


def lines(results: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table."""
    found = ["| data set | accuracy | MLPClassifier | log loss | MLPClassifier | fit, s | ÷ MLPClassifier |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name, entry in results["tables"].items():
        ours, theirs = (entry[classifier] for classifier in CLASSIFIERS)
        found.append(
            f"| {name} | {ours['accuracy']:.2%} | {theirs['accuracy']:.2%} | {ours['log_loss']:.3f} | "
            f"{theirs['log_loss']:.3f} | {ours['fit_seconds']:.3f} | {ours['fit_seconds'] / theirs['fit_seconds']:.2f} |"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    torch.set_num_threads(1)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        results = compare()
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(lines(results)))


if __name__ == "__main__":
    main()
