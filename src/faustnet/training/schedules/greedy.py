"""Each layer to its end, then the next one."""

import math
import os
import tempfile
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from faustnet.errors import FaustnetError, require
from faustnet.losses.gradients import backward, unit_gradient
from faustnet.methods import STATISTICS_IMAGES, Method, Source, some_positions
from faustnet.nn.layers import Layer
from faustnet.nn.structure import Structure, activation, map_tensors, tensors
from faustnet.system.devices import free_memory
from faustnet.training.optimisers import AnyOptimiser
from faustnet.training.schedules.base import Schedule, local
from faustnet.training.schedules.feed import feed_from
from faustnet.training.schedules.step_graph import buffers_in_place

CHUNK = 1024  # images processed at once when activations are cached, at most


class Greedy(Schedule):
    """A layer trains on the cached activations of the finished layers before it. So only one layer has gradients and
    optimiser state. Activations that would take more than half of the free memory are cached in a file."""

    name = "greedy"

    def __init__(self, method: Method, train: Source, optimiser: AnyOptimiser):
        super().__init__(method, train, optimiser)
        self.local = local(method, self.name)
        require(
            not self.local.blends_images,
            "training.schedule=greedy caches activations, so it does not support MixUp: use "
            "another schedule, or leave out options.mixup.",
        )
        self.phases = len(method.network)
        self.finished = 0  # layers whose activations are cached
        self.received: Source = train  # the input of this phase's layer

    def _set_up(self) -> None:
        training = self.method.training
        self.method.eval()
        while self.finished < self.phase:
            layer = self.method.network[self.finished]
            layer.update_statistics(self._rows(some_positions(self.train, STATISTICS_IMAGES)))
            self.received = self._after(layer)
            self.finished += 1
        self.method.train(training)
        self.local.feed_from(self.received)
        self.feed = feed_from(self.received)
        self.updates = self.optimiser.updates(self.method, [list(self.method.network[self.phase].parameters())])

    @property
    def layers(self) -> range:
        return range(self.phase, self.phase + 1)

    @property
    def _recordable(self) -> bool:
        cached = self.received.passed if isinstance(self.received, CachedActivations) else ()
        on_device = all(tensor.device == self.device for tensor in tensors(cached))
        return super()._recordable and on_device

    def begin(self, batches: Tensor, rates: Tensor, first: int) -> None:
        self.table.fill([batches, rates], first)

    def step(self) -> None:
        self.graph.enqueue()

    def drain(self) -> None:
        self.graph.flush()

    def _train_batches(self, count: int) -> None:
        layer = self.method.network[self.phase]
        for _ in range(count):
            with buffers_in_place(layer.modules()):
                self._train_batch()

    def _train_batch(self) -> None:
        index, rate = self.table.read()
        y = self.received.labels[index]
        _, loss = self.local.layer_loss(self.phase, self.local.rows(self.feed.augmented(index), y), y)
        if loss.requires_grad:
            backward(loss, unit_gradient(loss))
            self.updates.step(rate)
        self.totals += loss.detach()

    def _changes(self) -> list[Tensor]:
        return [*self.method.parameters(), *self.method.buffers(), *self.updates.changes()]

    def state(self) -> dict[str, Tensor]:
        return self.updates.state()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.updates.restore(tensors)

    def _rows(self, positions: Tensor) -> Structure:
        """Return all variants of the inputs at these positions, as rows. (b,) → (b · V, …)"""
        x = self.received.plain(positions)
        if not isinstance(self.received, CachedActivations):
            return self.local.variants(x)
        return map_tensors(lambda tensor: tensor.flatten(0, 1), x) if self.received.variants > 1 else x

    @torch.no_grad()
    def _after(self, layer: Layer) -> "CachedActivations":
        """Return what the layer passes on for the whole training set: (n, …), or (n, V, …) for V variants of each image."""
        everything = torch.arange(len(self.train.labels), device=self.device)
        cache: Structure = None
        done = 0
        for chunk in everything.split(min(CHUNK, self.method.network.rows_at_once(self.device))):
            passed, _ = layer(self._rows(chunk))
            variants = len(activation(passed)) // len(chunk)
            if variants > 1:
                passed = map_tensors(lambda tensor, count=len(chunk): tensor.unflatten(0, (count, -1)), passed)
            if cache is None:
                cache = map_tensors(lambda tensor: allocate((len(everything), *tensor.shape[1:]), tensor), passed)
            for whole, part in zip(tensors(cache), tensors(passed), strict=True):
                whole[done : done + len(chunk)] = part
            done += len(chunk)
        return CachedActivations(cache, self.train.labels, self.train.class_names, variants)


def allocate(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an empty tensor on the device, or in a temporary file if it would take more than half of the free memory."""
    size = math.prod(shape) * like.element_size()
    if size <= free_memory(like.device) // 2:
        return like.new_empty(shape)
    with tempfile.TemporaryFile() as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # fails now if the disk is too full
            else:
                file.truncate(size)
        except OSError as error:
            raise FaustnetError(
                f"The activations of a layer need {size / 2**30:.1f} GiB, more than is free in memory or in "
                f"{tempfile.gettempdir()} ({error.strerror}): set TMPDIR to another folder, then resume the run."
            ) from None
        numbers = np.dtype(str(like.dtype).removeprefix("torch."))
        return torch.from_numpy(np.memmap(file, numbers, mode="r+", shape=shape))


class CachedActivations:
    """What a layer passes on for the training set, used instead of the images."""

    def __init__(self, passed: Structure, labels: Tensor, class_names: Sequence[str], variants: int):
        self.passed, self.labels, self.class_names, self.variants = passed, labels, class_names, variants

    def plain(self, index: Tensor) -> Structure:
        return map_tensors(lambda tensor: tensor[index.to(tensor.device)].to(index.device), self.passed)

    augmented = plain
