"""Loading of model files: what it imports, and how much memory it may take."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from PIL import Image

import faustnet
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS, build
from faustnet.nn.architectures import NETWORK_KINDS, NetworkSettings
from faustnet.system.allocation import AllocationLimit, AllocationLimitError

SHAPE = 3, 16, 16
LOADED = """
import sys
import faustnet
model = faustnet.load(sys.argv[1], device="cpu")
model.predict([sys.argv[2]])
print([name for name in ("torch._dynamo", "sympy", "sklearn", "matplotlib") if name in sys.modules])
"""


def test_loading_and_predicting_do_not_import_a_compiler(tmp_path: Path) -> None:
    pixels = torch.randint(256, (8, 1, 8, 8), dtype=torch.uint8).numpy()
    recipe = {"network": {"widths": [8]}, "training": {"epochs": 1, "batch_size": 4}}
    faustnet.train(recipe, tmp_path / "run", data=(pixels, [0, 1] * 4), test=(pixels, [0, 1] * 4), device="cpu")
    Image.fromarray(pixels[0, 0]).save(tmp_path / "image.png")
    words = [sys.executable, "-c", LOADED, str(tmp_path / "run"), str(tmp_path / "image.png")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def supported(method: str) -> list[NetworkSettings]:
    """Small networks of all kinds that a method can train."""
    every = [NetworkSettings((20, 20), kind=kind) for kind in NETWORK_KINDS]
    found = []
    for network in every:
        with suppress(FaustnetError):
            build(method, SHAPE, 10, network, {})
            found.append(network)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_limit_counts_all_weights_and_buffers(name: str) -> None:
    networks = supported(name)
    assert networks
    for network in networks:
        with AllocationLimit(10**7) as limit:
            method = build(name, SHAPE, 10, network, {})
        needed = sum(tensor.numel() for tensor in method.state_dict().values())
        assert 10**7 - limit.left >= needed
        with pytest.raises(AllocationLimitError), AllocationLimit(needed - 1):
            build(name, SHAPE, 10, network, {})


def test_a_tensor_above_the_limit_is_not_allocated() -> None:
    for make in (torch.empty, torch.zeros, torch.ones, torch.randn, torch.zeros(1).new_zeros):
        with pytest.raises(AllocationLimitError), AllocationLimit(10**6):
            make(10**6, 10**9)
