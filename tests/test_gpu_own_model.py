"""Own models and own data on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, StackDataset, TensorDataset

import faustnet
from faustnet.errors import FaustnetError
from own_models import BLOCKS, data, dense, groups, made, trained

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
X, Y = data()
SOURCES: dict[str, Callable[[], Any]] = {
    "data set": lambda: StackDataset(X, Y),  # unlike a TensorDataset, it is read item by item
    "data loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=16),
}


class Waits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (2 if x.sum().item() > 0 else 1)


def weights(method: faustnet.Method) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in method.state_dict().items()}


@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_gpu_learns_what_the_cpu_learns(name: str, schedule: str) -> None:
    if name == "mask":
        pytest.skip("its blocks make their mask on the CPU")
    methods = [made(BLOCKS[name]), made(BLOCKS[name]).cuda()]
    for method in methods:
        trained(method, schedule=schedule, precision="float32")
    torch.testing.assert_close(weights(methods[1]), weights(methods[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
def test_data_that_are_read_while_training(kind: str, schedule: str) -> None:
    ends = []
    for device in ("cpu", "cuda"):
        method = made().to(device)
        trained(
            method,
            train=SOURCES[kind](),
            schedule=schedule,
            precision="float32",
            batch_size=None if "loader" in kind else 16,
        )
        ends.append(weights(method))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-5, atol=1e-6)


def test_an_optimiser_without_a_faster_form_is_used_without_a_recorded_step(capsys: pytest.CaptureFixture[str]) -> None:
    methods = [made(), made().cuda()]
    for method in methods:
        trained(method, optimiser=groups, schedule="wavefront", precision="float32")
    assert "CUDA graph" in capsys.readouterr().err
    torch.testing.assert_close(weights(methods[1]), weights(methods[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
def test_a_body_that_waits_for_the_gpu_is_refused(schedule: str) -> None:
    method = made(lambda: [*dense(), Waits()]).cuda()
    with pytest.raises(FaustnetError, match=r"cannot be recorded as a CUDA graph .*not permitted when stream is capturing"):
        trained(method, schedule=schedule)
    torch.randn(3, device="cuda")  # the generator is not left in the mode of the recording
    trained(made().cuda(), schedule=schedule)
