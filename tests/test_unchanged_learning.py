"""Every method learns the weights that version 0.1 learned, under every schedule, to about eight digits.

`fixtures/0.1/weights.safetensors` holds the float64 weights after 50 steps on the CPU, and a few scores.
"""

import json
import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from faustnet.data import Augmentation, Images, ImageSource, Scaling, load_data
from faustnet.methods import METHODS, LocalMethod, Method, build
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.old_names import current_names
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import evaluating
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings

WEIGHTS = Path(__file__).parent / "fixtures" / "0.1" / "weights.safetensors"
CLASSES, IMAGES, BATCH, EPOCHS = 4, 160, 32, 10  # 5 batches in each epoch, 50 steps
SCORED = 3  # images
TOLERANCE = 1e-8  # relative to the largest value of a tensor; kinds of processors differ by up to 2e-9
SCORE_TOLERANCE = 1e-6  # a score may be the root of a squared distance near 0, which enlarges rounding errors


@dataclass(frozen=True)
class Case:
    """One training. All fields but the method say what differs from the defaults."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    optimiser: dict[str, Any] = field(default_factory=dict)
    augmentation: dict[str, Any] = field(default_factory=dict)


# All uses of the package's own modules are in the following functions.


def current_name(name: str) -> str:
    """The present name of a parameter that version 0.1 stored under `name`."""
    return name


def is_local(method: str) -> bool:
    return issubclass(METHODS[method], LocalMethod)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images of the first four digits, averaged to 4×4 pixels, which keeps the stored weights small."""
    train = load_data("digits").train
    chosen = (train.labels < CLASSES).nonzero()[: IMAGES + SCORED, 0]
    pixels = train.pixels[chosen].float()
    return torch.nn.functional.avg_pool2d(pixels, 2).round().to(torch.uint8), train.labels[chosen]


def source(rows: slice, augmentation: dict[str, Any]) -> ImageSource:
    pixels, labels = digits()
    scaling = Scaling(torch.full((1, 1, 1), 80.0).double(), torch.full((1, 1, 1), 64.0).double())
    names = [str(number) for number in range(CLASSES)]
    return ImageSource(Images(pixels[rows], labels[rows]), scaling, names, Augmentation(**augmentation))


def build_case(case: Case) -> Method:
    network = NetworkSettings(**{"widths": (8, 8, 8) if case.method == "cwc" else (5, 5, 5), "embedding": 4, **case.network})
    with seeded(3):
        return build(case.method, (1, 4, 4), CLASSES, network, case.options).half().double()


def learned(case: Case, schedule: str) -> tuple[Method, dict[str, Tensor]]:
    """Train one case; return its method, and the final parameters by name, with the scores of a few images as "scores".

    The initial weights are rounded to half precision, so that they do not depend on the last digit of a processor's
    float32 functions.
    """
    method = build_case(case)
    train, others = source(slice(IMAGES), case.augmentation), source(slice(IMAGES, None), {})
    settings = TrainingSettings(epochs=EPOCHS, batch_size=BATCH, schedule=schedule, evaluate_every=3 * EPOCHS)
    optimiser = OptimiserSettings(**{"learning_rate": 0.01, **case.optimiser})
    trainer = TrainingLoop(method, train, others, settings, optimiser, seed=3)
    assert trainer.run(lambda: None, lambda epoch: None)
    with evaluating(method):
        method.make_ready(train)
        scores = method.scores(others.plain(torch.arange(SCORED)))
    return method, {name: parameter.detach() for name, parameter in method.named_parameters()} | {"scores": scores}


# End of the uses of the package's own modules.

DENSE = (
    "backprop", "forward-forward", "symba", "ffcm", "collaborative-ff", "cwc", "faust-triplet", "faust-tuplet",
    "faust-representative", "faust-prototype", "faust-centroid",
)  # fmt: skip
RESIDUAL = ("backprop", "faust-triplet", "faust-tuplet", "faust-representative", "faust-prototype", "faust-centroid")
VGG = (*RESIDUAL, "cwc", "trifecta")

CONVOLUTIONS: dict[str, Any] = {"widths": (4, 4, 4), "pools": (2,), "head": 2, "embedding": 3}
MATRICES: dict[str, Any] = {"name": "muon", "weight_decay": 0.1}
# Dense layers with batch norm have biases without any effect, whose gradients are rounding errors: Adam would enlarge them.
BATCH_NORM = ("backprop", "cwc", "faust-representative", "faust-prototype", "faust-tuplet", "faust-centroid")
OPTIONS: dict[str, dict[str, Any]] = {
    "mixup": {"mixup": 0.4},
    "contrast": {"contrast": 0.5, "temperature": 0.2},
    "matching": {"matching": 0.5},
    "final-scale": {"final_scale": 0.2},
    "label-smoothing": {"label_smoothing": 0.1},
}
TERMS = {"final_scale": 0.2, "contrast": 0.3, "matching": 0.7}

CASES: dict[str, Case] = {
    **{f"{name}/dense": Case(name) for name in DENSE},
    **{f"{name}/vgg": Case(name, network={**CONVOLUTIONS, "kind": "vgg"}) for name in VGG},
    **{f"{name}/residual": Case(name, network={**CONVOLUTIONS, "widths": (3, 3), "kind": "residual"}) for name in RESIDUAL},
    **{f"{name}/batch-norm": Case(name, {}, {"norm": "batch"}, {"name": "sgd"}) for name in BATCH_NORM},
    **{f"faust-representative/{words}": Case("faust-representative", options) for words, options in OPTIONS.items()},
    "faust-representative/three": Case("faust-representative", {"representatives": 3, "choice": "k-means"}),
    "faust-representative/chosen": Case("faust-representative", {"chosen": (0, 1, 2, 3)}),
    "faust-representative/mixup-terms": Case("faust-representative", {"mixup": 0.4, **TERMS}),
    "faust-prototype/two": Case("faust-prototype", {"prototypes": 2, **TERMS}),
    "faust-prototype/mixup": Case("faust-prototype", {"mixup": 0.4}),
    "faust-prototype/unit": Case("faust-prototype", {"scale": 2.0}, {"length": "unit"}),
    "faust-centroid/terms": Case("faust-centroid", {"momentum": 0.9, **TERMS}),
    "faust-tuplet/label-smoothing": Case("faust-tuplet", {"label_smoothing": 0.1}),
    "faust-triplet/margin": Case("faust-triplet", {"margin": 0.5}),
    "backprop/mixup": Case("backprop", {"mixup": 0.4, "label_smoothing": 0.1}),
    "forward-forward/one-pass": Case("forward-forward", {"inference": "one-pass"}),
    "faust-representative/unequal": Case("faust-representative", network={"widths": (6, 6, 6, 4, 4)}),
    "faust-representative/learned-length": Case("faust-representative", network={"length": "learned"}),
    "faust-representative/unit-length": Case("faust-representative", network={"length": "unit"}),
    "faust-representative/passes-embedding": Case("faust-representative", network={"passes_on": "embedding"}),
    "faust-representative/no-projection": Case("faust-representative", network={"embedding": 0}),
    "faust-representative/dropout": Case("faust-representative", network={"dropout": 0.2, "input_dropout": 0.1}),
    "faust-tuplet/augmented": Case("faust-tuplet", augmentation={"flip": True, "crop": 1}),
    "faust-representative/adam": Case("faust-representative", optimiser={"weight_decay": 0.01, "warmup": 0.1}),
    "faust-representative/adamw": Case("faust-representative", optimiser={"name": "adamw", "weight_decay": 0.1}),
    "faust-representative/sgd": Case("faust-representative", optimiser={"name": "sgd", "weight_decay": 0.01}),
    "faust-representative/sgd-plain": Case("faust-representative", optimiser={"name": "sgd", "momentum": 0.0}),
    "faust-representative/muon": Case("faust-representative", optimiser={**MATRICES, "decay": "constant"}),
    "faust-prototype/muon": Case("faust-prototype", optimiser=MATRICES),
    "faust-representative/vgg-muon": Case("faust-representative", {}, {**CONVOLUTIONS, "kind": "vgg"}, MATRICES),
    "backprop/muon": Case("backprop", optimiser=MATRICES),
}


def schedules(case: Case) -> list[str]:
    """The schedules that a case supports: greedy training caches activations, so it cannot change the images."""
    if not is_local(case.method):
        return ["sequential"]
    return ["sequential", "wavefront", *([] if case.augmentation or "mixup" in case.options else ["greedy"])]


def reference(case: Case, schedule: str) -> str:
    """The schedule whose stored weights a schedule must reproduce. With dropout the wavefront draws in its own order."""
    return "sequential" if schedule == "wavefront" and "dropout" not in case.network else schedule


def packed() -> bytes:
    """The contents of the file of references: one vector for each training, and the tensors' names and shapes once."""
    vectors: dict[str, Tensor] = {}
    shapes: dict[str, dict[str, list[int]]] = {}
    for name, case in CASES.items():
        for schedule in dict.fromkeys(reference(case, one) for one in schedules(case)):
            _, found = learned(case, schedule)
            vectors[f"{name}/{schedule}"] = torch.cat([tensor.flatten() for tensor in found.values()])
            shapes[name] = {key: list(tensor.shape) for key, tensor in found.items()}
    return save(vectors, {"shapes": json.dumps(shapes)})


@cache
def stored() -> dict[str, dict[str, Tensor]]:
    """The weights of version 0.1 by present parameter name, for each "method/variant/schedule"."""
    with safe_open(WEIGHTS, "pt") as file:
        shapes = json.loads(file.metadata()["shapes"])
        vectors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    found = {}
    for key, vector in vectors.items():
        own = shapes[key.rsplit("/", 1)[0]]
        parts = vector.split([math.prod(shape) for shape in own.values()])
        found[key] = {current_name(name): part.view(own[name]) for name, part in zip(own, parts, strict=True)}
    return found


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest value."""
    return float((one - other).abs().max() / other.abs().max().clamp_min(1e-3))


@pytest.mark.parametrize(
    ("name", "schedule"), [(name, schedule) for name, case in CASES.items() for schedule in schedules(case)]
)
def test_a_method_learns_the_same_weights_as_in_version_0_1(name: str, schedule: str) -> None:
    method, found = learned(CASES[name], schedule)
    expected = current_names(stored()[f"{name}/{reference(CASES[name], schedule)}"], method)
    assert found.keys() == expected.keys()
    differences = {key: difference(found[key], tensor) for key, tensor in expected.items()}
    assert differences.pop("scores") <= SCORE_TOLERANCE
    assert max(differences.values()) <= TOLERANCE, differences


def test_the_references_cover_every_method_and_optimiser_of_version_0_1() -> None:
    methods = {case.method for case in CASES.values()}
    assert methods == {*DENSE, *VGG}
    assert methods <= set(METHODS)
    assert {case.optimiser.get("name", "adam") for case in CASES.values()} == {"adam", "adamw", "sgd", "muon"}
    assert stored().keys() == {f"{name}/{reference(case, one)}" for name, case in CASES.items() for one in schedules(case)}
