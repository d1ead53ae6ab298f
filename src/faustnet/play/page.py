"""Render the page of `faustnet play`. It loads no other file, and its content security policy forbids it."""

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from faustnet.data import DataSet, Images
from faustnet.errors import FaustnetError, require
from faustnet.methods import Faust
from faustnet.methods.faust import RepresentativeMethod
from faustnet.play.drawing import Drawing
from faustnet.play.graph import Weights, as_bytes, layer_operations
from faustnet.runs.analysis import network_in_words
from faustnet.runs.examples import balanced_sample
from faustnet.runs.model import Model
from faustnet.training.evaluation import all_scores, early_exits, evaluate
from faustnet.version import VERSION

LARGEST = 20_000_000  # bytes of the weights, references and pictures of representatives in a page
MEASURED = 1000  # test images that the accuracies are measured on, and training images that drawings should look like
SAMPLES = 20  # test images in the page
DECIMALS = 6
SCRIPTS = ("network.js", "pad.js", "page.js")


@dataclass(frozen=True)
class PageModel:
    """A model in the form that a page computes."""

    model: Model
    facts: dict[str, Any]  # for JSON: layers as operations, and the settings of predictions
    weights: Weights

    @classmethod
    def of(cls, model: Model) -> "PageModel":
        """Translate a model, which must be on the CPU, or say in one sentence why a page cannot run it."""
        method, scaling = _checked(model), model.scaling
        assert scaling is not None
        weights, layers = Weights(), []
        lengths: Sequence[float | None] = method.new_lengths or [None] * len(method.network)
        triples = zip(method.network, method.references, lengths, strict=True)
        for number, (layer, references, length) in enumerate(triples, start=1):
            about = layer_operations(layer, number, weights)
            layers.append({**about, "references": weights.add(references), "length": length})
        size = 4 * weights.count + (method.images.numel() if isinstance(method, RepresentativeMethod) else 0)
        require(
            size <= LARGEST,
            f"The weights and references of a model in a page must have at most {LARGEST / 1e6:.0f} MB, got "
            f"{size / 1e6:.1f} MB: train a smaller network.",
        )
        facts = {
            "shape": list(model.shape),
            "mean": scaling.mean.flatten().tolist(),
            "deviation": scaling.deviation.flatten().tolist(),
            "layers": layers,
            "scale": method.scale,
            "weights": list(method.weights),
            "mirror": method.prediction.mirror,
        }
        return cls(model, facts, weights)


def _checked(model: Model) -> Faust:
    """Refuse models without images to draw, and methods without distances to show."""
    method = model.method
    require(
        model.tokeniser is None,
        "A page takes drawings and images, but this model was trained on texts: choose a model of images.",
    )
    require(
        len(model.shape) == 3 and model.shape[0] in (1, 3) and model.shape[1:] != (1, 1),
        f"A page takes grey or RGB images, but this model was trained on rows of {model.shape[0]} numbers: choose a model "
        "of images.",
    )
    require(
        model.of_bytes,
        "A page takes pixels from 0 to 255, but this model was trained on other values: train on images of bytes (uint8).",
    )
    if not isinstance(method, Faust) or type(method).scores is not Faust.scores:
        raise FaustnetError(
            f"A page shows the distances to the references of each class, which {method.name} does not have: train with a "
            "FAUST method such as faust-representative."
        )
    return method


def render_play(page: PageModel, data: DataSet) -> str:
    """Return the page for a model and the data set that it was trained on. Invalid Unicode becomes question marks."""
    model = page.model
    test = _balanced(data.test, MEASURED)
    facts = {
        "model": page.facts,
        "tensors": page.weights.tensors,
        "classes": list(model.class_names),
        "samples": _samples(model, data.test),
        "representatives": _representatives(model),
        "drawing": _drawing(data.train),
        **_measured(model, test),
    }
    script, style = "\n".join(map(_read, SCRIPTS)), _read("page.css")
    templates = Environment(
        loader=PackageLoader("faustnet.play", ""), autoescape=True, trim_blocks=True, undefined=StrictUndefined
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    rendered = templates.get_template("page.html").render(
        dataset=data.name, network=network_in_words(model), method=model.method.name, classes=model.class_names,
        layers=len(model.method.network), drawn=facts["drawing"] is not None, facts=facts, script=script, style=style,
        weights=_base64(page.weights.to_bytes()), hash=_base64(hashlib.sha256(script.encode()).digest()), version=VERSION,
    )  # fmt: skip
    return rendered.encode(errors="replace").decode()


def _read(name: str) -> str:
    return (files("faustnet.play") / name).read_text(encoding="utf-8")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _balanced(images: Images, count: int) -> Images:
    """Return this number of images, equally many of each class if there are enough."""
    return images.take(torch.from_numpy(balanced_sample(images.labels.cpu().numpy(), count)))


def _samples(model: Model, test: Images) -> dict[str, Any]:
    """Return some test images, class by class, and PyTorch's scores of them, by which the page checks itself."""
    images = _balanced(test, SAMPLES)
    images = images.take(images.labels.argsort(stable=True))
    scores = all_scores(model.method, model.source(images)).transpose(0, 1)  # (n, layers, C)
    return {
        "pixels": _base64(as_bytes(images.all_pixels)),
        "labels": images.labels.tolist(),
        "scores": np.round(scores.double().numpy(), DECIMALS).tolist(),
    }


def _measured(model: Model, images: Images) -> dict[str, Any]:
    """Return the accuracy of each layer and of all together, and the effect of early exit."""
    source, method = model.source(images), model.method
    assert isinstance(method, Faust)
    found = evaluate(method, source)
    exits = [asdict(line) for line in early_exits(method, source)]
    for line in exits:  # with a single class, all margins are infinite, which JSON cannot contain
        line["threshold"] = line["threshold"] if math.isfinite(line["threshold"] or 0.0) else None
    return {
        "images": len(images),
        "accuracy": found.accuracy,
        "layer_accuracy": found.layer_accuracy,
        "exits": exits,
    }


def _representatives(model: Model) -> str | None:
    """Return the representatives as bytes in base64, class by class, or None if the method has none."""
    method = model.method
    if not isinstance(method, RepresentativeMethod) or model.scaling is None:
        return None
    return _base64(as_bytes(method.images * model.scaling.deviation + model.scaling.mean))


def _drawing(images: Images) -> dict[str, Any] | None:
    """Return how drawings become images like these, or None for colour images."""
    if images.shape[0] != 1:
        return None
    return asdict(Drawing.of(_balanced(images, MEASURED).all_pixels[:, 0].cpu().numpy()))
