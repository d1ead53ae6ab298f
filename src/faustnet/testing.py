"""Checks of the contracts of layers and methods, for classes of your own.

    faustnet.testing.check_layer(faustnet.nn.Layer(MyBody(64), MyHead()), torch.randn(8, 64))
    faustnet.testing.check_method(MyMethod)

Each check raises a `FaustnetError` that says what is wrong.
"""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from faustnet.data import Images, ImageSource, Scaling
from faustnet.errors import require
from faustnet.methods import LocalMethod, Method
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.layers import Layer, check_embedding
from faustnet.nn.structure import Structure, activation, select_rows, tensors
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import evaluating
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings

__all__ = ["check_layer", "check_method"]

SHAPE, CLASSES = (1, 8, 8), 4
BATCH, BATCHES, EPOCHS = 20, 4, 12
NETWORK = NetworkSettings(widths=(16, 12, 12), embedding=8)
TOLERANCE = 1e-7  # relative difference of two trainings in float64 that should be equal


def check_layer(layer: Layer, sample: Structure) -> None:
    """Check that a layer can be trained and used by every part of the package.

    Args:
        layer: A body and a head, as a `Layer`.
        sample: Input that the body accepts, (R, …), with at least two different rows.
    """
    require(isinstance(layer, Layer), f"layer must be a faustnet.nn.Layer(body, head), got {type(layer).__name__}.")
    rows = len(activation(sample))
    require(rows > 1, f"sample must have at least two rows, (R, …), got {rows}.")
    name = type(layer.body).__name__
    layer = copy.deepcopy(layer)
    layer.train()
    with torch.enable_grad():
        _, trained = layer(sample)
    layer.eval()
    buffers = {key: buffer.clone() for key, buffer in layer.named_buffers()}
    with torch.no_grad():
        passed, embedding = layer(sample)
        again = layer(sample)
        first = layer(select_rows(sample, slice(0, 1)))
    for tensor in tensors(passed):
        require(
            tensor.dim() > 0 and len(tensor) == rows,
            f"All tensors that {name} returns must have the {rows} rows of the batch first, got {tuple(tensor.shape)}.",
        )
    check_embedding(embedding, rows, name)
    require(bool(embedding.isfinite().all()), f"The embedding of {name} must be finite, got NaN or infinity.")
    require(
        _close(embedding, again[1]),
        f"{name} gives different embeddings for the same rows in evaluation mode: draw "
        "random numbers in training mode only.",
    )
    same = _close(embedding[:1], first[1]) and _close(activation(passed)[:1], activation(first[0]))
    require(same, f"{name} makes an embedding depend on the other rows in evaluation mode: use stored statistics.")
    for key, buffer in layer.named_buffers():
        require(
            torch.equal(buffer, buffers[key]),
            f"{name} changes its buffer {key} in evaluation mode: update it in training mode only.",
        )
    trainable = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    require(not trainable or trained.requires_grad, f"The embedding of {name} has no gradient: do not detach it.")


def check_method(
    method: type[Method], *, network: NetworkSettings = NETWORK, options: Mapping[str, Any] | None = None
) -> None:
    """Check that a method can be trained by every schedule, stopped, continued, saved and used for prediction.

    The method is trained on small random images of four classes, in float64 on the CPU. This takes seconds.

    Args:
        method: The class, a subclass of `Method` or `LocalMethod`.
        network: A network that the method accepts. The default has widths that are multiples of the four classes.
        options: Options of the method that differ from the defaults.
    """
    options = options or {}
    _check_class(method)
    checked = _trainer(method, network, options)  # refuses parameters and buffers that would not be trained
    with torch.no_grad():
        rows = checked.method.unlabelled(checked.train.plain(torch.arange(8)))
        for layer in checked.method.network:
            check_layer(layer, rows)
            rows = copy.deepcopy(layer).eval()(rows)[0]
    _check_scores(checked)
    _check_losses(checked)  # trains it to the end
    _check_continuing(checked, method, network, options)
    _check_prediction(checked, method, network, options)
    if isinstance(checked.method, LocalMethod):
        _check_schedules(checked.method, method, network, options)


def _check_class(method: type[Method]) -> None:
    for attribute in ("name", "summary"):
        value = getattr(method, attribute, "")
        require(
            bool(value) and isinstance(value, str),
            f"{method.__name__}.{attribute} must be a non-empty string, got {value!r}.",
        )
    method.option_types()
    for option, default in method.options().items():
        require(default is not inspect.Parameter.empty, f"Option {option!r} of {method.__name__} needs a default.")


def _source() -> ImageSource:
    """Return noisy images of four classes, which a small network can tell apart."""
    with seeded(0):
        labels = torch.arange(BATCH * BATCHES) % CLASSES
        patterns = torch.rand(CLASSES, *SHAPE) * 255
        pixels = (patterns[labels] * 0.7 + torch.rand(len(labels), *SHAPE) * 255 * 0.3).to(torch.uint8)
    images = Images(pixels, labels)
    scaling = Scaling.of(images)
    exact = Scaling(scaling.mean.double(), scaling.deviation.double())
    return ImageSource(images, exact, [f"class {number}" for number in range(CLASSES)])


def _trainer(
    method: type[Method], network: NetworkSettings, options: Mapping[str, Any], schedule: str = "sequential"
) -> TrainingLoop:
    with seeded(0):
        made = method(method.make_network(SHAPE, CLASSES, network), CLASSES, **options).double()
    settings = TrainingSettings(epochs=EPOCHS, batch_size=BATCH, schedule=schedule, evaluate_every=EPOCHS)
    source = _source()
    return TrainingLoop(made, source, replace(source), settings, OptimiserSettings(learning_rate=3e-3), seed=0)


def _trained(*about: Any) -> TrainingLoop:
    trainer = _trainer(*about)
    trainer.run(lambda: None, lambda epoch: None)
    return trainer


def _check_scores(trainer: TrainingLoop) -> None:
    method = copy.deepcopy(trainer.method)
    images = trainer.train.plain(torch.arange(BATCH))
    with evaluating(method):
        method.make_ready(trainer.train)
        scores = method.votes(images)
        require(bool(scores.isfinite().all()), f"The scores of {method.name} must be finite, got NaN or infinity.")
        require(
            _close(scores, method.votes(images)),
            f"{method.name} gives different scores for the same images: do not draw random numbers in scores.",
        )


def _check_losses(trainer: TrainingLoop) -> None:
    method, name = trainer.method, trainer.method.name
    index = torch.arange(BATCH)
    losses = list(copy.deepcopy(method).losses(trainer.train.plain(index), trainer.train.labels[index]))
    require(
        all(loss.dim() == 1 for loss in losses),
        f"{name}.losses must yield tensors of shape (n,), got {[tuple(loss.shape) for loss in losses]}.",
    )
    count = sum(len(loss) for loss in losses)
    require(
        count == len(method.learners),
        f"{name}.losses must yield {len(method.learners)} losses, one for each of its learners, got {count}.",
    )
    trainer.run(lambda: None, lambda epoch: None)
    for learner, first, last in zip(method.learners, trainer.history[0].losses, trainer.history[-1].losses, strict=True):
        fell = first is not None and last is not None and last < first
        require(
            fell,
            f"The loss of {learner} of {name} did not fall in {EPOCHS} epochs: it was {first} in "
            f"the first and {last} in the last epoch.",
        )


def _check_continuing(whole: TrainingLoop, *about: Any) -> None:
    begun, continued = _trainer(*about), _trainer(*about)
    half = EPOCHS * BATCHES // 2 + 1

    def stop() -> None:
        if len(begun.history) * BATCHES + begun.batch == half:
            begun.stop()

    begun.run(stop, lambda epoch: None)
    tensors, facts = begun.state_on_host()
    continued.restore({name: tensor.clone() for name, tensor in tensors.items()}, facts)
    continued.run(lambda: None, lambda epoch: None)
    _require_equal(continued.method, whole.method, "an uninterrupted training and one that was stopped and continued")


def _check_prediction(
    trainer: TrainingLoop, method: type[Method], network: NetworkSettings, options: Mapping[str, Any]
) -> None:
    images, name = trainer.train.plain(torch.arange(BATCH)), method.name
    with evaluating(trainer.method):
        scores = trainer.method.votes(images)
    with seeded(1):
        fresh = method(method.make_network(SHAPE, CLASSES, network), CLASSES, **options).double()
    fresh.load_state_dict(trainer.method.state_dict())
    with evaluating(fresh):
        same = _close(scores, fresh.votes(images))
    require(
        same,
        f"The state_dict of {name} does not contain everything that prediction needs: store it in parameters or buffers.",
    )


def _check_schedules(sequential: LocalMethod, *about: Any) -> None:
    _require_equal(_trained(*about, "wavefront").method, sequential, "the sequential and the wavefront schedule")
    if not sequential.blends_images:
        before = dict(_trainer(*about).method.named_parameters())
        for key, parameter in _trained(*about, "greedy").method.named_parameters():
            moved = not parameter.requires_grad or not torch.equal(parameter, before[key])
            require(moved, f"The greedy schedule does not train {key} of {sequential.name}.")


def _require_equal(one: Method, other: Method, what: str) -> None:
    theirs = other.state_dict()
    for key, tensor in one.state_dict().items():
        require(_close(tensor, theirs[key]), f"{key} of {one.name} differs between {what}.")


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    tolerance = TOLERANCE if one.dtype == torch.float64 else 1e-4
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance)
