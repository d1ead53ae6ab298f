"""Each layer to its end, then the next one."""

import math
import os
import tempfile
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from faustnet.system.devices import free_memory
from faustnet.errors import FaustnetError
from faustnet.methods import SETTLED, Method, Source, some_positions
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.schedules.base import OneOptimiser, local
from faustnet.training.schedules.feed import feed_from

CHUNK = 1024  # images walked at once when activations are cached


class Greedy(OneOptimiser):
    """A layer trains on the activations that the finished layers gave once and for all, so only one layer has gradients
    and an optimiser's memory. Activations that would take more than half of the free memory lie in a file."""

    name = "greedy"

    def __init__(self, method: Method, train: Source, optimiser: OptimiserSettings):
        super().__init__(method, train, optimiser)
        self.local = local(method, self.name)
        self.stages = len(method.network)
        self.finished = 0  # layers whose activations are cached
        self.received: Source = train  # what the layer of this stage is fed from

    def _make_ready(self) -> None:
        training = self.method.training
        self.method.eval()
        while self.finished < self.stage:
            layer = self.method.network[self.finished]
            layer.settle(self._rows(some_positions(self.train, SETTLED)))
            self.received = self._after(layer)
            self.finished += 1
        self.method.train(training)
        self.local.feed_from(self.received)
        self.feed = feed_from(self.received)
        self.optimiser = self.settings.make(self.method.network[self.stage].parameters())

    @property
    def layers(self) -> range:
        return range(self.stage, self.stage + 1)

    @property
    def _recordable(self) -> bool:
        on_device = not isinstance(self.received, CachedActivations) or self.received.activations.device == self.device
        return super()._recordable and on_device

    def _tick(self) -> None:
        index, rate = self.plan.read()
        y = self.received.labels[index]
        _, embedding = self.method.network[self.stage](self.local.rows(self.feed.augmented(index), y))
        layers = slice(self.stage, self.stage + 1)
        losses = self.local.local_loss(embedding.unsqueeze(0), y.unsqueeze(0), layers)
        losses.sum().backward()
        self._take_step(rate)
        self.totals += losses.detach()

    def _rows(self, positions: Tensor) -> Tensor:
        """All that the images there can become, as they were received. (b,) → (b · V, d)"""
        x = self.received.plain(positions)
        return self.local.variants(x) if self.received is self.train else x.flatten(0, -2)

    @torch.no_grad()
    def _after(self, layer: nn.Module) -> "CachedActivations":
        """What this layer makes of all that it was fed from: (n, w), or (n, V, w) where an image has V variants."""
        everything = torch.arange(len(self.train.labels), device=self.device)
        passed: Tensor | None = None
        for chunk in everything.split(CHUNK):
            activation, _ = layer(self._rows(chunk))
            variants = len(activation) // len(chunk)
            activation = activation.view(len(chunk), *([variants] if variants > 1 else []), -1)
            if passed is None:
                passed, done = room_for((len(everything), *activation.shape[1:]), activation), 0
            passed[done : done + len(chunk)] = activation
            done += len(chunk)
        assert passed is not None
        return CachedActivations(passed, self.train.labels, self.train.class_names)


def room_for(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An empty tensor: on the device, or mapped to a temporary file where it would take too much memory."""
    size = math.prod(shape) * like.element_size()
    if size <= free_memory(like.device) // 2:
        return like.new_empty(shape)
    with tempfile.TemporaryFile() as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # to find out now whether the disk has room
            else:
                file.truncate(size)
        except OSError as error:
            raise FaustnetError(
                f"The layer's activations take {size / 2**30:.1f} GiB, which neither memory nor {tempfile.gettempdir()} has "
                f"room for ({error.strerror}): name another folder in TMPDIR, and continue the run."
            ) from None
        numbers = np.dtype(str(like.dtype).removeprefix("torch."))
        return torch.from_numpy(np.memmap(file, numbers, mode="r+", shape=shape))


class CachedActivations:
    """A layer's activations of the training set, in place of the images."""

    def __init__(self, activations: Tensor, labels: Tensor, class_names: Sequence[str]):
        self.activations = activations
        self.labels = labels
        self.class_names = class_names

    def plain(self, index: Tensor) -> Tensor:
        return self.activations[index.to(self.activations.device)].to(index.device)

    augmented = plain
