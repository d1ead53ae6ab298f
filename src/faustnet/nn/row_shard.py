"""One rank's rows of a batch, and the operations of a layer that involve the rows of all ranks."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from faustnet.nn.structure import empty_rows


@dataclass(frozen=True)
class RowShard:
    """Consecutive rows of a batch of `total` rows that one rank processes. All ranks of the group have the same number of
    rows, except the last ones, which may have fewer or none."""

    group: dist.ProcessGroup
    rank: int  # in the group
    ranks: int
    total: int

    @property
    def most(self) -> int:
        """Largest number of rows of a rank."""
        return -(-self.total // self.ranks)

    @property
    def counts(self) -> list[int]:
        """Number of rows of each rank."""
        return [min(self.most, max(0, self.total - rank * self.most)) for rank in range(self.ranks)]

    @property
    def own(self) -> slice:
        """Positions of this rank's rows in the batch."""
        first = min(self.rank * self.most, self.total)
        return slice(first, first + self.counts[self.rank])

    def gather(self, rows: Tensor) -> "Gathering":
        """Start to gather the rows of all ranks. (own, …) → (total, …)"""
        sent = rows.new_zeros(self.most, *rows.shape[1:])
        sent[: len(rows)] = rows
        return Gathering(self, sent)

    def dropout(self, rows: Tensor, share: float) -> Tensor:
        """Apply dropout to the own rows, with the random numbers that one process would draw for all rows."""
        kept = torch.nn.functional.dropout(empty_rows(rows, self.total).fill_(1), share)
        return rows * kept[self.own]

    def batch_norm(self, rows: Tensor, gain: Tensor, offset: Tensor, epsilon: float) -> Tensor:
        """Apply batch norm with the statistics of all ranks' rows. (own, channels, …) → the same shape"""
        return _BatchNorm.apply(rows, gain, offset, epsilon, self)[0]


class Gathering:
    """An asynchronous gather of all ranks' rows."""

    def __init__(self, shard: RowShard, sent: Tensor):
        self.sent, self.total = sent, shard.total  # keeps the buffer alive until it is sent
        self.whole = sent.new_empty(shard.ranks * shard.most, *sent.shape[1:])
        self.work = dist.all_gather(list(self.whole.chunk(shard.ranks)), sent, group=shard.group, async_op=True)

    def wait(self) -> Tensor:
        """Return all rows. → (total, …)"""
        assert self.work is not None
        self.work.wait()
        return self.whole[: self.total]


class ShardedBatchNorm:
    """The forward pass of one of torch's batch norms, with the statistics of all ranks' rows."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, shard: RowShard):
        self.norm, self.shard = norm, shard

    @classmethod
    def install(cls, norm: nn.modules.batchnorm._BatchNorm, shard: RowShard | None) -> None:
        """Make a module compute in this way; None: in its own way again."""
        vars(norm).pop("forward", None)
        if shard is not None:
            norm.forward = cls(norm, shard)  # type: ignore[assignment]

    def __call__(self, rows: Tensor) -> Tensor:
        """(own, channels, …) → the same shape"""
        norm = self.norm
        if not norm.training:
            return type(norm).forward(norm, rows)
        gain = norm.weight if norm.affine else rows.new_ones(norm.num_features)
        offset = norm.bias if norm.affine else rows.new_zeros(norm.num_features)
        output, mean, variance = _BatchNorm.apply(rows, gain, offset, norm.eps, self.shard)
        if norm.track_running_stats:
            self._track(mean, variance, self.shard.total * rows.shape[2:].numel())
        return output

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Update the running statistics from those of `count` values, as torch does."""
        norm = self.norm
        assert norm.num_batches_tracked is not None
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.num_batches_tracked += 1
        share = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean.to(norm.running_mean), share)
        norm.running_var.lerp_((variance * (count / (count - 1))).to(norm.running_var), share)


class _BatchNorm(torch.autograd.Function):
    """Batch norm over all ranks, with one message in each direction: means and variances, then the sums for the gradient.
    Also returns the mean and the variance."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, gain: Tensor, offset: Tensor, epsilon: float, shard: RowShard
    ) -> tuple[Tensor, Tensor, Tensor]:
        values = rows.to(torch.promote_types(rows.dtype, torch.float32))
        dims = [0, *range(2, rows.dim())]
        own = values.new_zeros(2, rows.shape[1])
        if len(rows):
            variance, mean = torch.var_mean(values, dims, correction=0)
            own = torch.stack([mean, variance])
        all_ranks = [torch.empty_like(own) for _ in range(shard.ranks)]
        dist.all_gather(all_ranks, own, group=shard.group)
        means, variances = torch.stack(all_ranks, dim=1)  # (ranks, channels) each
        before = torch.arange(shard.ranks, device=rows.device).unsqueeze(1) * shard.most  # rows on the ranks before
        weights = (shard.total - before).clamp(0, shard.most).to(means.dtype) / shard.total
        mean = (weights * means).sum(dim=0)
        variance = (weights * (variances + (means - mean).square())).sum(dim=0)
        over_rows = (-1, *[1] * (rows.dim() - 2))
        root = (variance + epsilon).rsqrt().view(over_rows)
        normal = (values - mean.view(over_rows)) * root
        ctx.save_for_backward(normal, gain, root)
        ctx.shard, ctx.dims, ctx.over_rows, ctx.dtype = shard, dims, over_rows, rows.dtype
        ctx.mark_non_differentiable(mean, variance)
        return (normal * gain.view(over_rows) + offset.view(over_rows)).to(rows.dtype), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        normal, gain, root = ctx.saved_tensors
        by_output = by_output.to(normal.dtype)
        own = torch.stack([by_output.sum(ctx.dims), (by_output * normal).sum(ctx.dims)])
        whole = own.clone()
        dist.all_reduce(whole, group=ctx.shard.group)
        pixels = normal.shape[2:].numel()
        by_offset, by_gain = (whole / (ctx.shard.total * pixels)).view(2, *ctx.over_rows)
        by_rows = gain.view(ctx.over_rows) * root * (by_output - by_offset - normal * by_gain)
        return by_rows.to(ctx.dtype), own[1].to(gain.dtype), own[0].to(gain.dtype), None, None
