import math
from collections.abc import Sequence
from functools import partial

import pytest
import torch

from faustnet.errors import FaustnetError
from faustnet.training.optimisers import OPTIMISERS, Optimiser, OptimiserSettings
from faustnet.training.optimisers.muon import orthogonalised
from faustnet.training.optimisers.standard import SGD
from faustnet.training.optimisers.updates import JointUpdates


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


def updates_of(parameters: Sequence[torch.nn.Parameter], **settings: object) -> JointUpdates:
    """Return the updates of parameters that take their steps together."""
    module = torch.nn.ParameterList(parameters)
    return OptimiserSettings(**settings).create().updates(module, [module.parameters()])


RULES = {
    "adam": lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.2),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.2),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, weight_decay=0.2),
}


@pytest.mark.parametrize("name", RULES)
def test_steps_are_those_of_torch_and_of_the_update_of_layers(name: str) -> None:
    """Without a faster function, `Optimiser.step` calls `update` for each parameter."""
    torch.manual_seed(0)
    start = [torch.randn(shape, dtype=torch.float64) for shape in ((4, 3), (4,), (2, 3, 3, 3))]
    theirs, ours, slow = ([torch.nn.Parameter(value.clone()) for value in start] for _ in range(3))
    settings = {"name": name, "learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.2}
    torchs, mine, slowly = RULES[name](theirs), updates_of(ours, **settings), updates_of(slow, **settings)
    slowly.optimiser.step = partial(Optimiser.step, slowly.optimiser)
    for rate in (0.1, 0.05, 0.2):
        gradients = [torch.randn_like(value) for value in start]
        for parameters in (theirs, ours, slow):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
        torchs.param_groups[0]["lr"] = rate
        torchs.step()
        for updates in (mine, slowly):
            updates.step(torch.tensor(rate, dtype=torch.float64))
    assert all(parameter.grad is None for parameter in (*ours, *slow))
    for found in (ours, slow):
        for one, expected in zip(found, theirs, strict=True):
            torch.testing.assert_close(one, expected)
    names = {f"{number}/{word}" for number, state in torchs.state_dict()["state"].items() for word in state}
    assert mine.state().keys() == names


def test_a_parameter_without_a_gradient_and_its_state_stay() -> None:
    used, unused, frozen = (torch.nn.Parameter(torch.ones(2, 3)) for _ in range(3))
    frozen.requires_grad_(False)
    updates = updates_of([used, unused, frozen], name="adamw", weight_decay=0.5)
    used.grad = torch.ones(2, 3)
    updates.step(torch.tensor(0.1))
    assert (used < 1).all()
    assert (unused == 1).all()
    state = updates.state()
    assert (state["0/step"], state["1/step"], state["1/exp_avg"].abs().sum()) == (1, 0, 0)
    assert not any(key.startswith("2/") for key in state)


def test_a_stored_state_is_restored_in_place_and_another_networks_is_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    updates, other = updates_of([weight]), updates_of([torch.nn.Parameter(torch.ones(2, 3))])
    weight.grad = torch.ones(2, 3)
    updates.step(torch.tensor(0.1))
    before = other.state()
    other.restore(updates.state())
    assert all(torch.equal(before[key], value) for key, value in updates.state().items())
    with pytest.raises(ValueError, match="other parameters than the network"):
        other.restore({"0/step": torch.ones(())})
    with pytest.raises(ValueError, match="the shape of exp_avg of 0 in the optimiser state does not match"):
        other.restore({**{key: value + 1 for key, value in updates.state().items()}, "0/exp_avg": torch.ones(3, 3)})
    assert all(torch.equal(before[key], value) for key, value in updates.state().items()), "nothing is half restored"


def test_the_number_of_steps_is_counted_exactly_whatever_the_default_type() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        updates = updates_of([torch.nn.Parameter(torch.ones(2))])
    finally:
        torch.set_default_dtype(torch.float32)
    assert updates.state()["0/step"].dtype == torch.float32


class DecoupledSGD(SGD):
    name = "decoupled-sgd"
    decoupled = True


def test_sgd_with_decoupled_weight_decay_is_computed_by_the_update_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMISERS, DecoupledSGD.name, DecoupledSGD)
    weight = torch.nn.Parameter(torch.full((2,), 3.0, dtype=torch.float64))
    updates = updates_of([weight], name=DecoupledSGD.name, momentum=0.0, weight_decay=0.5)
    weight.grad = torch.full_like(weight, 2.0)
    updates.step(torch.tensor(0.1, dtype=torch.float64))
    assert weight.tolist() == pytest.approx([3 * (1 - 0.1 * 0.5) - 0.1 * 2] * 2)


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
    ours = updates_of([matrix, vector, *others], name="muon", momentum=0.8, **settings)
    twin = torch.nn.Parameter(vector.detach().clone())
    adamw, rate = updates_of([twin], name="adamw", **settings), torch.tensor(0.1, dtype=torch.float64)
    expected, momentum = matrix.detach().clone(), torch.zeros(6, 9, dtype=torch.float64)
    for _ in range(4):
        for parameter in (matrix, vector, *others):
            parameter.grad = torch.randn_like(parameter)
        twin.grad = vector.grad.clone()
        momentum = 0.8 * momentum + 0.2 * matrix.grad
        change = orthogonalised((0.8 * momentum + 0.2 * matrix.grad).unsqueeze(0))[0] * 0.2 * 9**0.5
        expected = expected * (1 - 0.1 * 0.3) - 0.1 * change
        ours.step(rate)
        adamw.step(rate)
    torch.testing.assert_close(matrix.detach(), expected)
    torch.testing.assert_close(vector, twin)
