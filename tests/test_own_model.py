"""A user's own modules learn the same under every schedule and on ranks, with any optimiser and scheduler."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import lr_scheduler

import faustnet
from faustnet import methods
from faustnet.nn.architectures import NetworkSettings
from faustnet.system.randomness import seeded
from faustnet.training.optimisers import KnownOptimiser, OwnOptimiser, optimiser_from
from own_models import BATCH, BLOCKS, CLASSES, SAMPLES, adamw, convolutions, data, dense, groups, made, trained, transformer
from processes import Program, start_ranks


def assert_same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture(scope="session")
def sequential() -> dict[str, dict[str, Tensor]]:
    """The state of each network after a sequential training."""
    return {name: trained(made(blocks)).method.state_dict() for name, blocks in BLOCKS.items()}


@pytest.fixture(scope="session")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    ranks = start_ranks(2, "import pathlib, sys, own_models\nown_models.main(pathlib.Path(sys.argv[1]))", folder)
    errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    return folder


@pytest.mark.parametrize("name", BLOCKS)
def test_the_wavefront_learns_what_the_sequential_schedule_learns(
    name: str, sequential: dict[str, dict[str, Tensor]]
) -> None:
    method = made(BLOCKS[name])
    before = {key: tensor.clone() for key, tensor in method.state_dict().items()}
    trained(method, schedule="wavefront")
    assert_same_weights(method.state_dict(), sequential[name])
    learned = [not torch.equal(tensor, before[key]) for key, tensor in method.state_dict().items() if "layers.2" in key]
    assert any(learned)


@pytest.mark.parametrize("parallel", ["data", "layers"])
@pytest.mark.parametrize("name", BLOCKS)
def test_two_ranks_learn_what_one_process_learns(
    name: str, parallel: str, on_two_ranks: Path, sequential: dict[str, dict[str, Tensor]]
) -> None:
    assert_same_weights(load_file(on_two_ranks / f"{name}-{parallel}.safetensors"), sequential[name])


def test_the_running_statistics_of_a_batch_norm_are_those_of_the_rows(sequential: dict[str, dict[str, Tensor]]) -> None:
    state = sequential["batch norm"]
    for layer in range(3):
        assert state[f"network.layers.{layer}.body.1.num_batches_tracked"] == 3 * 4
        assert state[f"network.layers.{layer}.body.1.running_mean"].abs().max() > 0.05


def test_a_frozen_body_stays_as_it_is(sequential: dict[str, dict[str, Tensor]]) -> None:
    fresh = made(BLOCKS["frozen body"]).state_dict()
    for name, tensor in sequential["frozen body"].items():
        if "layers.0.body" in name or "layers.1.body.0" in name:
            assert torch.equal(tensor, fresh[name]), name
    changed = "network.layers.1.body.2.weight"
    assert not torch.equal(sequential["frozen body"][changed], fresh[changed])


OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "groups": groups,
    "decoupled adam": lambda p: torch.optim.Adam(p, lr=3e-3, weight_decay=0.5, decoupled_weight_decay=True),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "adam with a penalty": lambda p: torch.optim.Adam(p, lr=3e-3, weight_decay=0.1),
    "adamw": adamw,
}


def prepare(method: faustnet.Method) -> None:
    """Choose the representatives as a trainer does."""
    with seeded(1):
        method.prepare(data())


def by_hand(method: faustnet.Method, make: Callable[[Any], torch.optim.Optimizer], batches: list[Tensor]) -> None:
    """Train with plain PyTorch: an optimiser for each layer, and detached activations."""
    x, y = data()
    prepare(method)
    method.train()
    optimisers = [make([p for p in layer.parameters() if p.requires_grad]) for layer in method.network]
    for index in batches:
        rows = method.rows(x[index], y[index])
        for number, (layer, optimiser) in enumerate(zip(method.network, optimisers, strict=True)):
            passed, embedding = layer(rows)
            method.local_loss(embedding, y[index], number).backward()
            optimiser.step()
            optimiser.zero_grad()
            rows = passed.detach()


def epoch_of(seed: int, epoch: int) -> list[Tensor]:
    """The batches that the trainer uses."""
    order = torch.randperm(len(data()[1]), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    return list(order[: 4 * BATCH].view(4, BATCH))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_any_optimiser_of_torch_is_used_for_each_layer(name: str) -> None:
    expected = made()
    by_hand(expected, OPTIMISERS[name], epoch_of(0, 0) + epoch_of(0, 1))
    for schedule in ("sequential", "wavefront"):
        method = made()
        trained(method, 2, optimiser=OPTIMISERS[name], schedule=schedule)
        assert_same_weights(
            {key: tensor.detach() for key, tensor in method.named_parameters()}, dict(expected.named_parameters())
        )


def test_plain_optimisers_are_replaced_by_their_faster_forms() -> None:
    kinds = {name: type(optimiser_from(make, None, "epoch", made())) for name, make in OPTIMISERS.items()}
    assert [name for name, kind in kinds.items() if kind is KnownOptimiser] == ["plain sgd", "adam with a penalty", "adamw"]
    assert set(kinds.values()) == {KnownOptimiser, OwnOptimiser}


SCHEDULERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "step": (lambda o: lr_scheduler.StepLR(o, 1, gamma=0.5), "epoch"),
    "plateau": (lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=10.0), "epoch"),
    "one cycle": (lambda o: lr_scheduler.OneCycleLR(o, 3e-3, total_steps=12), "batch"),
    "exponential": (lambda o: lr_scheduler.ExponentialLR(o, 0.9), "batch"),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_changes_the_learning_rate_in_every_schedule(name: str) -> None:
    scheduler, every = SCHEDULERS[name]
    options = {"scheduler": scheduler, "scheduler_every": every}
    found = {}
    for optimiser in (adamw, groups):  # of the package's form, and as it is
        one, other = (trained(made(), schedule=kind, optimiser=optimiser, **options) for kind in ("sequential", "wavefront"))
        assert_same_weights(one.method.state_dict(), other.method.state_dict())
        found[optimiser] = [epoch.learning_rate for epoch in one.history]
    reference = adamw([nn.Parameter(torch.zeros(1))])
    stepped, rates = scheduler(reference), []
    for _ in range(3):
        for _ in range(4):
            rate = reference.param_groups[0]["lr"]
            reference.step()
            if every == "batch":
                stepped.step()
        rates.append(rate)
        if every == "epoch":
            stepped.step(*([1.0] if name == "plateau" else []))
    assert found[adamw] == pytest.approx(rates)
    assert rates[0] != rates[2]


def test_each_layer_of_the_greedy_schedule_begins_with_the_first_learning_rate() -> None:
    options = {"scheduler": lambda o: lr_scheduler.OneCycleLR(o, 3e-3, total_steps=4), "scheduler_every": "batch"}
    histories = [
        trained(made(), 1, schedule="greedy", optimiser=optimiser, **options).history for optimiser in (adamw, groups)
    ]
    for history in histories:
        assert len(history) == 2
        assert history[0].learning_rate == history[1].learning_rate


def test_callbacks_are_called_and_can_stop() -> None:
    class Counting(faustnet.Callback):
        batches = 0

        def on_batch(self, trainer: faustnet.Trainer) -> None:
            self.batches += 1

    counting, seen = Counting(), []

    def early(trainer: faustnet.Trainer, epoch: Any) -> None:
        seen.append(epoch.epoch)
        if epoch.epoch == 2:
            trainer.stop()

    trainer = trained(made(), 10, callbacks=[counting, early], test=data())
    assert (seen, counting.batches, len(trainer.history)) == ([1, 2], 8, 2)
    assert trainer.history[-1].accuracy == trainer.evaluate().accuracy


@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
def test_a_training_that_is_stopped_at_any_batch_continues_as_if_it_had_not_been(schedule: str) -> None:
    class StopAt(faustnet.Callback):
        left = 6

        def on_batch(self, trainer: faustnet.Trainer) -> None:
            self.left -= 1
            if self.left == 0:
                trainer.stop()

    options = {"schedule": schedule, "scheduler": SCHEDULERS["one cycle"][0], "scheduler_every": "batch"}
    trainer = trained(made(), 3, callbacks=[StopAt()], **options)
    assert len(trainer.history) == 1
    trainer.fit(2, verbose=False)
    assert [epoch.epoch for epoch in trainer.history] == [1, 2, 3]
    assert_same_weights(trainer.method.state_dict(), trained(made(), 3, **options).method.state_dict())


def test_a_second_fit_trains_further() -> None:
    trainer = trained(made(), 1).fit(2, verbose=False)
    assert len(trainer.history) == 3
    assert_same_weights(trainer.method.state_dict(), trained(made(), 3).method.state_dict())


INTERRUPTED = """
import os, signal
import faustnet
from own_models import adamw, data, made

class Interrupt(faustnet.Callback):
    batches = 0
    def on_batch(self, trainer):
        self.batches += 1
        if self.batches == 2:
            os.kill(os.getpid(), signal.SIGINT)

interrupt = Interrupt()
trainer = faustnet.Trainer(made(), train=data(), optimiser=adamw, batch_size=16, callbacks=[interrupt])
try:
    trainer.fit(5)
except KeyboardInterrupt:
    print("interrupted after", interrupt.batches, len(trainer.history), trainer.method.predict(data()[0]).shape)
    trainer.fit(1, verbose=False)
    print("continued to", interrupt.batches, len(trainer.history))
"""


def test_ctrl_c_raises_after_the_batch_and_training_can_go_on() -> None:
    process = Program(INTERRUPTED)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.splitlines() == ["interrupted after 2 0 torch.Size([72])", "continued to 4 1"], err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_own_loop_learns_what_the_trainer_learns() -> None:
    method = made(transformer)
    prepare(method)
    optimisers = method.optimisers(adamw)
    x, y = data()
    losses = [method.train_step(x[index], y[index], optimisers) for index in epoch_of(0, 0)]
    method.make_ready(data())
    trainer = trained(made(transformer), 1)
    assert_same_weights(method.state_dict(), trainer.method.state_dict())
    torch.testing.assert_close(torch.stack(losses).mean(dim=0).tolist(), trainer.history[0].losses, rtol=1e-6, atol=1e-6)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    trainer, (x, _) = trained(made(convolutions)), data()
    trainer.method.save(tmp_path / "own.safetensors")
    other = made(convolutions)
    other.load(tmp_path / "own.safetensors")
    assert torch.equal(other.predict(x), trainer.method.predict(x))
    embedded = other.embed(x, layers=[2])
    assert embedded.shape == (len(x), 6)
    assert torch.equal(embedded, other.embed(x)[:, 6:12])


def test_prediction_does_not_depend_on_the_mode_type_or_device_of_its_input() -> None:
    trainer, (x, _) = trained(made(convolutions)), data()
    expected = trainer.method.predict(x)
    trainer.method.train()
    state = {name: tensor.clone() for name, tensor in trainer.method.state_dict().items()}
    assert torch.equal(trainer.method.predict(x.numpy()), expected)
    assert trainer.method.training
    for name, tensor in trainer.method.state_dict().items():
        assert torch.equal(tensor, state[name]), name


METHODS = ["Backprop", "FaustCentroid", "FaustPrototype", "FaustTriplet", "FaustTuplet", "FFCM", "SymBa"]


@pytest.mark.parametrize("name", METHODS)
def test_other_methods_train_own_networks(name: str) -> None:
    trainer = trained(made(transformer, getattr(faustnet, name)), 12, test=data())
    assert trainer.history[-1].accuracy > 0.6  # 0.25 by chance
    assert trainer.method.predict(data()[0]).max() < CLASSES


def test_bfloat16_is_used_for_the_products_of_any_module() -> None:
    seen: set[torch.dtype] = set()

    def blocks() -> Iterator[nn.Module]:
        for block in dense():
            block.register_forward_hook(lambda module, rows, output: seen.add(output.dtype) if module.training else None)
            yield block

    torch.manual_seed(0)
    x, y = data()
    method = faustnet.FaustRepresentative(faustnet.Network(blocks(), 6, example=x[:1].float()), CLASSES)
    trainer = trained(method, 15, precision="bfloat16", test=(x, y))
    assert seen == {torch.bfloat16}
    assert {parameter.dtype for parameter in method.parameters()} == {torch.float32}
    assert trainer.history[-1].accuracy > 0.8


def test_a_step_of_an_own_loop_leaves_a_frozen_layer_as_it_is() -> None:
    method = made(dense)
    method.network[0].requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in method.network[0].state_dict().items()}
    x, y = data()
    method.prepare((x, y))
    losses = method.train_step(x[:BATCH], y[:BATCH], method.optimisers(adamw))
    assert len(losses) == len(method.network)
    for name, tensor in method.network[0].state_dict().items():
        assert torch.equal(tensor, before[name]), name


def counted(called: list[int]) -> Callable[[Any], torch.optim.Optimizer]:
    def make(parameters: Any) -> torch.optim.Optimizer:
        optimiser = adamw(parameters)
        optimiser.register_step_pre_hook(lambda *given: called.append(1))
        return optimiser

    return make


def test_the_hooks_of_an_optimiser_are_called() -> None:
    called: list[int] = []
    assert type(optimiser_from(counted(called), None, "epoch", made())) is OwnOptimiser
    trained(made(), 1, optimiser=counted(called))
    assert len(called) == (SAMPLES // BATCH) * len(made().network)


def test_an_optimiser_whose_step_was_replaced_is_used_as_it_is() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        optimiser = adamw(parameters)
        optimiser.step = lambda closure=None: None  # type: ignore[assignment, method-assign, misc]
        return optimiser

    method = made()
    before = {name: tensor.clone() for name, tensor in method.named_parameters()}
    trained(method, 1, optimiser=make)
    assert_same_weights(dict(method.named_parameters()), before)


def test_a_sequence_of_schedulers_that_change_the_momentum_is_used_as_it_is() -> None:
    def scheduler(optimiser: Any) -> Any:
        cyclic = lr_scheduler.CyclicLR(optimiser, 0.05, 0.05, cycle_momentum=True)
        return lr_scheduler.SequentialLR(optimiser, [lr_scheduler.ConstantLR(optimiser, 1.0, 1), cyclic], [1])

    sgd = lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9)  # noqa: E731
    assert type(optimiser_from(sgd, scheduler, "epoch", made())) is OwnOptimiser


@pytest.mark.parametrize(
    ("key", "value", "when"), [("weight_decay", 50.0, "epoch"), ("lr", 0.0, "batch"), ("betas", (0.0, 0.5), "batch")]
)
@pytest.mark.parametrize("which", [0, -1])
def test_settings_of_an_optimiser_that_would_have_no_effect_are_refused(
    key: str, value: object, when: str, which: int
) -> None:
    given: list[torch.optim.Optimizer] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        given.append(adamw(parameters))
        return given[-1]

    class Changes(faustnet.Callback):
        def change(self) -> None:
            given[which].param_groups[0][key] = value

        def on_batch(self, trainer: Any) -> None:
            if when == "batch":
                self.change()

        def on_epoch(self, trainer: Any, epoch: Any) -> None:
            if when == "epoch":
                self.change()

    with pytest.raises(faustnet.FaustnetError, match=f"^optimiser must keep {key}="):
        trained(made(), 2, optimiser=make, callbacks=[Changes()])


def test_a_learning_rate_that_is_changed_between_two_epochs_counts() -> None:
    given: list[torch.optim.Optimizer] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        given.append(adamw(parameters))
        return given[-1]

    def halve(trainer: Any, epoch: Any) -> None:
        given[-1].param_groups[0]["lr"] /= 2

    first, second = trained(made(), 2, optimiser=make, callbacks=[halve]).history
    assert second.learning_rate == first.learning_rate / 2


def test_training_works_where_gradients_are_switched_off() -> None:
    expected, method = made(), made()
    trained(expected, 1)
    with torch.no_grad():
        trained(method, 1)
        assert not torch.is_grad_enabled()
    assert_same_weights(method.state_dict(), expected.state_dict())
    x, y = data()
    method.prepare((x, y))
    optimisers, before = method.optimisers(adamw), method.network[1].head.weight.clone()
    with torch.no_grad():
        method.train_step(x[:BATCH], y[:BATCH], optimisers)
    assert not torch.equal(method.network[1].head.weight, before)
    trainer = faustnet.Trainer(method, train=(x, y), optimiser=adamw, batch_size=BATCH)
    with torch.inference_mode():
        with pytest.raises(faustnet.FaustnetError, match=r"forbids: train outside of it\.$"):
            method.train_step(x[:BATCH], y[:BATCH], optimisers)
        with pytest.raises(faustnet.FaustnetError, match=r"forbids: train outside of it\.$"):
            trainer.fit(1, verbose=False)


@pytest.mark.parametrize("change", ["unfrozen", "frozen", "replaced"])
def test_parameters_that_change_between_two_fits_are_refused(change: str) -> None:
    method = made(dense)
    method.network[0].requires_grad_(change != "unfrozen")
    trainer = trained(method, 1)
    if change == "replaced":
        head = method.network[1].head
        method.network[1].head = nn.Linear(head.in_features, head.out_features, bias=False).double()
    else:
        method.network[0].requires_grad_(change == "unfrozen")
    with pytest.raises(faustnet.FaustnetError, match=r"make a new Trainer for the changed network\.$"):
        trainer.fit(1, verbose=False)


def test_a_callback_cannot_freeze_a_layer() -> None:
    """A recorded step, and a batched group of layers, would not notice it."""

    def freeze(trainer: Any, epoch: Any) -> None:
        trainer.method.network[0].requires_grad_(False)

    with pytest.raises(faustnet.FaustnetError, match=r"make a new Trainer for the changed network\.$"):
        trained(made(dense), 2, callbacks=[freeze])


def test_an_own_loop_checks_its_optimisers_again_if_parameters_change() -> None:
    method = made(dense)
    method.network[0].requires_grad_(False)
    method.prepare(data())
    optimisers = method.optimisers(adamw)
    x, y = data()
    method.train_step(x[:BATCH], y[:BATCH], optimisers)
    method.network[0].requires_grad_(True)
    with pytest.raises(faustnet.FaustnetError, match=r"network\.layers\.0\.\S+ is missing"):
        method.train_step(x[:BATCH], y[:BATCH], optimisers)
    method.network[0].requires_grad_(False)
    optimisers.clear()
    with pytest.raises(faustnet.FaustnetError, match="is missing"):
        method.train_step(x[:BATCH], y[:BATCH], optimisers)
    lbfgs = [torch.optim.LBFGS(layer.parameters()) for layer in method.network]
    with pytest.raises(faustnet.FaustnetError, match="which LBFGS cannot"):
        method.train_step(x[:BATCH], y[:BATCH], lbfgs)


class Unused(nn.Module):
    """A block that skips one of its two linear maps at random, or always."""

    def __init__(self, always: bool):
        super().__init__()
        self.map, self.other, self.always = nn.Linear(64, 8), nn.Linear(64, 8), always
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        rows = images.flatten(1)
        return torch.relu(self.map(rows) if self.always or self.calls % 3 else self.other(rows))


@pytest.mark.parametrize("always", [False, True])
def test_an_own_loop_warns_about_parameters_that_are_never_trained(always: bool, recwarn: pytest.WarningsRecorder) -> None:
    x, y = data()
    method = faustnet.FaustRepresentative(faustnet.Network([Unused(always).double()], 6, example=x[:1]), CLASSES).double()
    method.prepare((x, y))
    optimisers = method.optimisers(adamw)
    for _ in range(22):
        method.train_step(x[:BATCH], y[:BATCH], optimisers)
    found = [str(warning.message) for warning in recwarn]
    assert len(found) == always
    assert not always or "network.layers.0.body.other.bias got no gradient from any loss in 20 steps" in found[0]


class Skipped(nn.Module):
    """A residual block that most batches skip while training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, rows: Tensor) -> Tensor:
        return rows if self.training and torch.rand(()) < 0.8 else rows + self.linear(rows).relu()


class Experts(nn.Module):
    """Each row uses one of several linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.choice, self.experts = nn.Linear(16, 6), nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, rows: Tensor) -> Tensor:
        shares, found = self.choice(rows).softmax(dim=1), rows
        for number, expert in enumerate(self.experts):
            (own,) = (shares.argmax(dim=1) == number).nonzero(as_tuple=True)
            if len(own):
                found = found.index_add(0, own, shares[own, number : number + 1] * expert(rows[own]))
        return found


@pytest.mark.parametrize("kind", [faustnet.FaustRepresentative, faustnet.Backprop])
@pytest.mark.parametrize("block", [Skipped, Experts])
def test_blocks_that_not_every_sample_reaches_are_trained(block: type[nn.Module], kind: type[faustnet.Method]) -> None:
    method = made(lambda: [*dense(), block(), block()], kind)
    before = {name: parameter.clone() for name, parameter in method.named_parameters()}
    trained(method, epochs=6)
    for name, parameter in method.named_parameters():
        assert "experts" in name or not torch.equal(parameter, before[name]), name


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by the compiler, once a process
@pytest.mark.parametrize("kind", [faustnet.FaustRepresentative, faustnet.DeepSupervision, faustnet.Backprop])
def test_compiled_blocks_learn_what_the_blocks_learn(kind: type[faustnet.Method]) -> None:
    def blocks() -> list[nn.Module]:
        return [nn.Sequential(block, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for block in dense()]

    compiled = trained(made(lambda: [torch.compile(block, backend="aot_eager") for block in blocks()], kind), epochs=1)
    state = {name.replace("._orig_mod", ""): tensor for name, tensor in compiled.method.state_dict().items()}
    assert_same_weights(state, trained(made(blocks, kind), epochs=1).method.state_dict())


@pytest.mark.parametrize(
    "name", [name for name in methods.METHODS if name != "trifecta"]
)  # whose network has a channel for labels
def test_every_method_trains_a_network_in_double_precision(name: str, tmp_path: Path) -> None:
    options = {"inference": "one-pass"} if name == "forward-forward" else {}

    def fresh() -> faustnet.Method:
        network = methods.METHODS[name].make_network((1, 8, 8), CLASSES, NetworkSettings((16, 16), 8)).double()
        return methods.METHODS[name](network, CLASSES, **options).eval()

    method, other = trained(fresh(), test=data()).method, fresh()
    method.save(tmp_path / "method.safetensors")
    other.load(tmp_path / "method.safetensors")
    assert torch.equal(other.votes(data()[0]), method.votes(data()[0]))


class Tied(nn.Module):
    """Two linear maps with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
        self.other.weight = self.one.weight

    def forward(self, rows: Tensor) -> Tensor:
        return self.other(self.one(rows).relu())


class Counted(nn.Linear):
    """Has a state that is not a tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}


def repeated() -> list[nn.Module]:
    first, second = dense()
    return [first, second, second]


@pytest.mark.parametrize(
    ("blocks", "kind"),
    [
        (lambda: [*dense(), Tied()], faustnet.FaustRepresentative),
        (repeated, faustnet.Backprop),
        (repeated, faustnet.DeepSupervision),
    ],
)
def test_tied_weights_are_saved_and_loaded(
    blocks: Callable[[], list[nn.Module]], kind: type[faustnet.Method], tmp_path: Path
) -> None:
    method, other = trained(made(blocks, kind), epochs=1).method, made(blocks, kind).eval()
    method.save(tmp_path / "method.safetensors")
    other.load(tmp_path / "method.safetensors")
    assert_same_weights(other.state_dict(), method.state_dict())
    assert load_file(tmp_path / "method.safetensors").keys() == method.state_dict().keys()
    assert len(list(other.parameters())) == len(list(method.parameters()))  # they are still tied
    assert torch.equal(other.votes(data()[0]), method.votes(data()[0]))


def test_a_state_that_is_not_a_tensor_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    method = trained(made(lambda: [*dense(), Counted(16, 16)]), epochs=1).method
    said = r"^network\.layers\.2\.body\._extra_state must be a tensor to be saved, got dict: return a tensor from"
    with pytest.raises(faustnet.FaustnetError, match=said):
        method.save(tmp_path / "method.safetensors")
    assert list(tmp_path.iterdir()) == []
