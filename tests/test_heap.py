"""While a network is trained on the CPU, the process keeps freed memory instead of getting it anew from the system."""

import sys

import pytest

from processes import Program

FAULTS = """
import resource
import torch
from faustnet.system.heap import keep_freed_memory

assert keep_freed_memory()

def use_some_memory():
    tensors = [torch.ones(2**21) for _ in range(6)]  # 8 MiB each

for _ in range(5):
    use_some_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use_some_memory()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: other systems have other allocators")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    assert int(Program(FAULTS).communicate(60)[0]) < 500  # 480 MiB have 122,880 pages
