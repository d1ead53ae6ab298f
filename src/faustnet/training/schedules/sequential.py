"""Algorithm 1: every batch goes through all layers."""

import torch

from faustnet.training.schedules.base import OneOptimiser


class Sequential(OneOptimiser):
    """Each layer passes on what it computed before its update. The layers whose losses come together take their steps
    together, so that there are never more gradients than theirs."""

    name = "sequential"

    def _make_ready(self) -> None:
        self.optimiser = self.settings.make(self.method.parameters())

    @property
    def layers(self) -> range:
        return range(len(self.method.learners))

    def _tick(self) -> None:
        index, rate = self.plan.read()
        found = []
        for losses in self.method.losses(self.feed.augmented(index), self.train.labels[index]):
            losses.sum().backward()
            self._take_step(rate)
            found.append(losses.detach())
        self.totals += torch.cat(found)
