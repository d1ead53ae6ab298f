import math

import pytest
import torch

from faustnet.errors import FaustnetError
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.optimisers.muon import TorchMuon, orthogonalised


def test_cosine_decreases_from_the_full_rate_to_almost_zero() -> None:
    settings = OptimiserSettings(learning_rate=0.1)
    rates = [settings.rate(step, 100) for step in range(100)]
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 100)) for step in range(100)])


def test_warm_up_is_linear() -> None:
    settings = OptimiserSettings(learning_rate=0.1, warmup=0.1, decay="constant")
    rates = [settings.rate(step, 100) for step in range(100)]
    assert rates[:11] == pytest.approx([0.1 * (step + 1) / 11 for step in range(11)])
    assert rates[10:] == [0.1] * 90
    falling = OptimiserSettings(learning_rate=0.1, warmup=0.1)
    assert falling.rate(10, 100) == 0.1
    assert 0 < falling.rate(99, 100) < 1e-4


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD), ("muon", TorchMuon)],
)
def test_create_returns_the_optimiser_with_this_name(name: str, kind: type) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimiser = OptimiserSettings(name, learning_rate=0.5, weight_decay=0.1).create().torch_optimiser([weight])
    assert type(optimiser) is kind
    weight.grad = torch.zeros(3)
    optimiser.step()
    assert (weight < 1).all(), "weight decay pulls"


@pytest.mark.parametrize(
    "settings",
    [{"name": "adamm"}, {"decay": "linear"}, {"learning_rate": 0.0}, {"learning_rate": math.inf}, {"warmup": 1.0}],
)
def test_invalid_optimiser_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(FaustnetError):
        OptimiserSettings(**settings)


@pytest.mark.parametrize("shape", [(1, 20, 50), (2, 50, 20), (3, 16, 16)])
def test_orthogonalised_matrices_keep_singular_vectors_and_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape, dtype=torch.float64)
    left, lengths, right = torch.linalg.svd(matrices, full_matrices=False)
    found = left.mT @ orthogonalised(matrices) @ right.mT  # diagonal, if the directions are the same
    diagonal = found.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(found, torch.diag_embed(diagonal), atol=1e-9, rtol=0)
    large = lengths > 0.05 * lengths.amax(dim=-1, keepdim=True)
    assert ((diagonal > 0.6) & (diagonal < 1.3))[large].all()


def test_muon_moves_a_matrix_by_its_orthogonal_momentum_and_a_vector_by_adamw() -> None:
    torch.manual_seed(0)
    shapes = ((6, 9), (6,), (6, 9), (4, 6))  # those of one shape are worked on together
    matrix, vector, *others = (torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes)
    settings = {"learning_rate": 0.1, "weight_decay": 0.3}
    ours = OptimiserSettings("muon", momentum=0.8, **settings).create().torch_optimiser([matrix, vector, *others])
    twin = torch.nn.Parameter(vector.detach().clone())
    adamw = OptimiserSettings("adamw", **settings).create().torch_optimiser([twin])
    expected, momentum = matrix.detach().clone(), torch.zeros(6, 9, dtype=torch.float64)
    for _ in range(4):
        for parameter in (matrix, vector, *others):
            parameter.grad = torch.randn_like(parameter)
        twin.grad = vector.grad.clone()
        momentum = 0.8 * momentum + 0.2 * matrix.grad
        change = orthogonalised((0.8 * momentum + 0.2 * matrix.grad).unsqueeze(0))[0] * 0.2 * 9**0.5
        expected = expected * (1 - 0.1 * 0.3) - 0.1 * change
        ours.step()
        adamw.step()
    torch.testing.assert_close(matrix.detach(), expected)
    torch.testing.assert_close(vector, twin)
