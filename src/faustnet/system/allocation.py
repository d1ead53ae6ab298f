"""A limit on the size of new tensors, for models that are built from files that may be wrong."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NEW = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, Tensor.new_zeros})


class AllocationLimitError(Exception):
    """New tensors would exceed the limit."""


class AllocationLimit(TorchFunctionMode):
    """Context manager in which new tensors, such as weights and buffers, may have `values` values altogether.

    A tensor that exceeds the limit is not allocated. Results of computations do not count. Building on the meta device
    would need no limit, but computing there imports PyTorch's compiler, which takes a second.
    """

    def __init__(self, values: int):
        super().__init__()
        self.left = values

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in NEW:
            self.left -= func(*args, **{**given, "device": "meta"}).numel()
            if self.left < 0:
                raise AllocationLimitError
        return func(*args, **given)
