"""Count the multiplications of a computation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def plain_operations() -> Iterator[None]:
    """Compute attention and the encoder layers of torch by matrix products. `FlopCounterMode` does not count the faster
    operations that replace them in evaluation mode and on a CPU."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def count_multiplications(function: Callable[[Any], Any], rows: Any) -> tuple[Any, int]:
    """Call a function, and return its result and the number of multiplications in matrix products and convolutions."""
    from torch.utils.flop_counter import FlopCounterMode  # which imports Triton where it is installed

    with plain_operations(), FlopCounterMode(display=False) as counter:
        found = function(rows)
    return found, counter.get_total_flops() // 2  # a multiplication and an addition each
