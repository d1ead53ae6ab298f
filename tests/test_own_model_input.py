"""A mistake with an own model or own data is one sentence that names the argument, the rule, the value and the remedy."""

import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import faustnet
from faustnet.errors import FaustnetError, about_arguments
from own_models import CLASSES, adamw, convolutions, data, dense, made, trained, transformer
from processes import start_ranks

X, Y = data()


class Items(Dataset[Any]):
    def __init__(self, *items: Any):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> Any:
        return self.items[position]


class OneTime(IterableDataset[Any]):
    """A stream that cannot be read again."""

    def __init__(self) -> None:
        self.items = iter([(x, int(y)) for x, y in zip(X, Y, strict=True)])

    def __iter__(self) -> Iterator[Any]:
        return self.items


def with_nan(x: Tensor) -> Tensor:
    x = x.clone()
    x[3, 0, 2, 2] = torch.nan
    return x


def pairs(x: Tensor, y: Any) -> Items:
    return Items(*zip(x, y, strict=True))


OPTIMISERS: list[tuple[Any, str]] = [
    (torch.optim.Adam([nn.Parameter(torch.zeros(1))]), r"optimiser must be a function of a list .* got Adam: try lambda"),
    (lambda p: None, r"optimiser must be a function that returns a torch.optim.Optimizer .* got NoneType: try lambda"),
    (lambda p: torch.optim.SGD(p[:1], 0.1), r"optimiser must update all 3 parameters .* got 1\."),
    (lambda p: torch.optim.LBFGS(p), "optimiser must take a step without a closure, which LBFGS cannot: use another"),
]
TRAINERS: list[tuple[dict[str, Any], str]] = [  # arguments of a trainer, and what it says
    ({"train": X}, r"train must be a pair of arrays \(x, y\), a data set with labels or a data loader, got Tensor"),
    ({"train": TensorDataset(X)}, r"Item 0 of the data set must be a pair \(x, label\), got 1 entries: training needs"),
    ({"train": DataLoader(X, 8)}, r"Batch 1 of train must be a pair \(x, label\), got Tensor: training needs labels"),
    ({"train": Items()}, "train must have at least one sample, got none"),
    ({"train": (X, Y.double())}, "labels of train must be whole numbers from 0 to 3, got torch.float64: convert"),
    ({"train": (X, [str(label) for label in Y])}, "labels of train must be whole numbers from 0 to 3, got list .* number"),
    ({"train": (X, nn.functional.one_hot(Y))}, r"labels of train must have shape \(n,\), got \(72, 4\)"),
    ({"train": pairs(X, Y.double())}, "labels of train must be whole numbers from 0 to 3, got torch.float64"),
    ({"train": (X, Y - 1)}, "labels of train must be from 0 to 3, because the method has 4 classes, got -1"),
    ({"train": (X, Y + 1)}, "labels of train must be from 0 to 3, because the method has 4 classes, got 4"),
    ({"train": (X[Y < 3], Y[Y < 3]), "test": (X, Y)}, r"test must have only labels that train has, got \[3\]: add samples"),
    ({"train": (X[:9], Y)}, "train must have one label per sample, got 9 samples and 72 labels"),
    ({"train": (with_nan(X), Y)}, "train must contain finite values only, got NaN or infinity: replace them"),
    ({"train": pairs(with_nan(X), Y)}, "Item 3 of the data set must contain finite values only, got NaN"),
    ({"train": (X, Y), "test": (with_nan(X), Y)}, "test must contain finite values only, got NaN"),
    ({"train": (X[:, :, :4], Y)}, r"samples of train must have the shape .* example, \(1, 8, 8\), got \(1, 4, 8\)"),
    ({"train": pairs(X[:, :, :4], Y)}, r"shape of the network's example, \(1, 8, 8\), but item 0 .* has \(1, 4, 8\)"),
    ({"train": Items(*pairs(X, Y).items, (X[0, :, :5], 0))}, r"\(1, 8, 8\), but item 72 .* has \(1, 5, 8\): resize"),
    ({"train": ([X[0], X[0, 0]], [0, 1])}, "Samples must be tensors or arrays of numbers, got list .*: convert them"),
    ({"batch_size": 73}, "batch_size must be at most the number of training images, 72, got 73"),
    ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
    ({"train": DataLoader(pairs(X, Y), 8), "batch_size": 9}, "batch_size must be that of the data loader, 8, got 9: leave"),
    ({"schedule": "waves"}, r"^schedule must be auto or sequential or wavefront or greedy, got 'waves'\.$"),
    ({"precision": "half"}, r"^precision must be tf32 or float32 or bfloat16, got 'half'\.$"),
    ({"scheduler_every": "hour"}, "scheduler_every must be epoch or batch, got 'hour'"),
    ({"scheduler": lambda optimiser: None}, "scheduler must be a function that returns a .* got NoneType: try lambda"),
    (
        {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau, "scheduler_every": "batch"},
        'scheduler_every must be "epoch" for ReduceLROnPlateau',
    ),
    (
        {"train": DataLoader(pairs(X, Y), 8), "schedule": "greedy", "batch_size": None},
        "train must be arrays .* got a stream",
    ),
    *(({"optimiser": optimiser}, said) for optimiser, said in OPTIMISERS),
]


@pytest.mark.parametrize(("given", "said"), TRAINERS, ids=range(len(TRAINERS)))
def test_a_wrong_argument_of_the_trainer(given: dict[str, Any], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        trained(made(), 1, **given)


@pytest.mark.parametrize("make", [adamw, lambda parameters: torch.optim.RMSprop(parameters, 1e-2)])
@pytest.mark.parametrize("every", ["epoch", "batch"])
def test_schedulers_of_another_optimiser_and_too_short_ones(make: Any, every: str) -> None:
    """With optimisers that are replaced by a faster form, and with others."""
    first: list[Any] = []

    def same(optimiser: torch.optim.Optimizer) -> Any:
        first.append(lr_scheduler.StepLR(optimiser, 1))
        return first[0]

    with pytest.raises(FaustnetError, match=r"scheduler must return a new .* got one of another optimiser: make"):
        trained(made(), 2, optimiser=make, scheduler=same, scheduler_every=every)
    short = {"max_lr": 1e-2, "total_steps": 2, "cycle_momentum": False}
    with pytest.raises(FaustnetError, match=r"scheduler refuses to take a step \(Tried to step 3 .*\): make one"):
        trained(made(), 4, optimiser=make, scheduler=lambda o: lr_scheduler.OneCycleLR(o, **short), scheduler_every=every)


def test_wrong_values_in_later_items() -> None:
    """Of a data set whose labels are known, so that its items are read while training."""
    dataset = pairs(with_nan(X), Y)
    dataset.targets = Y.tolist()  # type: ignore[attr-defined]
    with pytest.raises(FaustnetError, match="Item 3 of the data set must contain finite values only"):
        trained(made(), 1, train=dataset)
    with pytest.raises(FaustnetError, match=r"train must have at least one batch of 16 .* iterated, got none in epoch 1"):
        trained(made(), 1, train=OneTime())


@pytest.mark.parametrize("epochs", [0, -1, 1.5, "3"])
def test_a_wrong_number_of_epochs(epochs: Any) -> None:
    with pytest.raises(FaustnetError, match="epochs must be a whole number of at least 1, got"):
        trained(made(), epochs)


def test_no_method_and_stop_before_fit() -> None:
    with pytest.raises(FaustnetError, match="method must be a faustnet method, got Linear"):
        faustnet.Trainer(nn.Linear(2, 2), train=data(), optimiser=adamw)  # type: ignore[arg-type]
    with pytest.raises(FaustnetError, match="stop must be called while fit runs"):
        faustnet.Trainer(made(), train=data(), optimiser=adamw).stop()
    with pytest.raises(FaustnetError, match="data must be given, because the trainer has no test data"):
        trained(made(), 1).evaluate()


def test_messages_speak_of_arguments_and_keep_the_names_of_parameters() -> None:
    sentence = "training.schedule must be x for network.layers.0.body.weight with --parallel layers, network.widths"
    assert about_arguments(sentence) == "schedule must be x for network.layers.0.body.weight with parallel layers, widths"


class Counter(nn.Module):
    """Keeps state in an attribute: `how` changes it."""

    def __init__(self, how: Callable[[Any], None], start: Any):
        super().__init__()
        self.linear, self.how, self.seen = nn.Linear(64, 8), how, start

    def forward(self, rows: Tensor) -> Tensor:
        self.how(self)
        return self.linear(rows.flatten(1))


def replace(body: Any) -> None:
    body.seen = body.seen + 1


CHANGES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "number": (replace, 0),
    "list": (lambda body: body.seen.append(1), []),
    "deque": (lambda body: body.seen.append(1), deque(maxlen=4)),
    "dictionary": (lambda body: body.seen.update({len(body.seen): 1}), {}),
    "tensor in place": (lambda body: body.seen.add_(1), torch.zeros(1)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_body_that_changes_its_own_attribute_is_refused_by_the_wavefront(kind: str) -> None:
    def method() -> faustnet.Method:
        return made(lambda: [Counter(*CHANGES[kind]), nn.Linear(8, 8)])

    with pytest.raises(FaustnetError, match=r"Layer 1 changes its attribute body\.seen .* wavefront .* register"):
        trained(method(), 1, schedule="wavefront")
    assert len(trained(method(), 1, schedule="sequential").history) == 1


def test_a_block_that_is_used_twice_is_refused_by_local_methods() -> None:
    def twice() -> list[nn.Module]:
        block = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        return [nn.Flatten(), block, block]

    said = "is shared with another layer, but each layer is trained by its own loss"
    with pytest.raises(FaustnetError, match=said):
        trained(made(twice), 1)
    method = made(twice)
    method.prepare(data())
    with pytest.raises(FaustnetError, match="optimisers must have each parameter once, got 2 more than once"):
        method.train_step(X, Y, method.optimisers(adamw))
    with pytest.raises(FaustnetError, match=said):
        method.train_step(X, Y, [adamw(method.parameters())])
    assert len(trained(made(twice, faustnet.Backprop), 1).history) == 1, "backprop can train shared weights"


def test_a_method_whose_rows_do_not_fit_the_network() -> None:
    with pytest.raises(FaustnetError, match=r"must take what trifecta makes .*, \(2, 8, 8\), got .* \(1, 8, 8\)"):
        trained(made(convolutions, faustnet.Trifecta), 1)


def test_a_network_without_trainable_parameters() -> None:
    method = made()
    method.requires_grad_(False)
    with pytest.raises(FaustnetError, match="method must have trainable parameters, got none"):
        trained(method, 1)


def test_wrong_steps_of_an_own_loop() -> None:
    method = made(transformer)
    with pytest.raises(FaustnetError, match=r"not ready to train: call prepare\(train\) before the first train_step"):
        method.train_step(X, Y, [])
    for kind in (faustnet.FaustRepresentative, faustnet.FaustTuplet, faustnet.FaustTriplet):
        with pytest.raises(FaustnetError, match=r"not ready to train: call prepare\(train\) before computing losses"):
            next(made(dense, kind).losses(X.float(), Y))
    with pytest.raises(FaustnetError, match=r"not ready to predict: after training, call make_ready\(train\)"):
        method.predict(X)
    method.prepare(data())
    optimisers = method.optimisers(adamw)
    for given, said in [
        (adamw(method.parameters()), "optimisers must be a list of torch's optimisers, got one optimiser: use method.optim"),
        (None, "optimisers must be a list of torch's optimisers, got None: use method.optimisers"),
        (["adam"], r"optimisers must be a list of torch's optimisers, got \['adam'\]"),
        (optimisers[1:], r"optimisers must have all trainable parameters, but network\.layers\.0\.body.* is missing"),
    ]:
        with pytest.raises(FaustnetError, match=said):
            method.train_step(X, Y, given)
    for optimiser, said in OPTIMISERS[1:2]:
        with pytest.raises(FaustnetError, match=said):
            method.optimisers(optimiser)
    for y, said in [
        (Y.double(), "labels of the batch y must be whole"),
        (Y[:5], "y must have one label per sample"),
    ]:
        with pytest.raises(FaustnetError, match=said):
            method.train_step(X, y, optimisers)
    method.train_step(X, Y, optimisers)
    with pytest.raises(FaustnetError, match="not ready to predict"):
        method.predict(X)
    method.make_ready(data())
    for layers in ([0], [4], [], [1, 1]):
        with pytest.raises(FaustnetError, match="layers must be one or more different numbers from 1 to 3"):
            method.embed(X, layers)


def test_embeddings_with_batch_norm_need_its_statistics() -> None:
    with pytest.raises(FaustnetError, match="not ready to predict"):
        made(convolutions).embed(X)


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    trained(made(dense), 1).method.save(tmp_path / "dense")
    whole = (tmp_path / "dense").read_bytes()
    (tmp_path / "damaged").write_bytes(whole[: len(whole) // 2])
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    said = {
        "missing": "There is no file .*missing: check the path",
        "damaged": "path must be a file of Method.save, but .*damaged is not one, or is damaged",
        "other": "path must be a file of Method.save, but .*other is not one",
        "dense": "has other parameters than this method: .* is (only|not) in the file",
        ".": "path must be a file of Method.save",
    }
    for name, sentence in said.items():
        with pytest.raises(FaustnetError, match=sentence):
            made(transformer).load(tmp_path / name)
    with pytest.raises(FaustnetError, match=r"dense has the weights of a method alone, .* with method\.load, or"):
        faustnet.load(tmp_path / "dense")
    with pytest.raises(FaustnetError, match="must contain a method with method backprop, got faust-representative"):
        made(dense, faustnet.Backprop).load(tmp_path / "dense")
    wide = faustnet.FaustRepresentative(faustnet.Network(dense(), 7, example=X[:1].float()), CLASSES)
    with pytest.raises(FaustnetError, match=r"has other shapes than this method: .* in the file and"):
        wide.load(tmp_path / "dense")
    with pytest.raises(FaustnetError, match=r"path must be a file that can be written, got .*nowhere"):
        trained(made(), 1).method.save(tmp_path / "nowhere" / "file")


def test_several_processes_that_have_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(FaustnetError, match=r"WORLD_SIZE is above 1, but .* train inside `with faustnet.join_ranks"):
        trained(made(), 1)


FAILING = """
import os
import faustnet
from own_models import adamw, data, made

x, y = data()
shift = int(os.environ["RANK"])
with faustnet.join_ranks():
    CODE
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "faustnet.Trainer(made(), train=(x + shift, y), optimiser=adamw, batch_size=8).fit()",
            "different train than",
        ),
        ("faustnet.Trainer(made(), train=(x, y), optimiser=adamw, parallel='rows')", "^.*: parallel must be data, layers"),
    ],
)
def test_a_mistake_on_ranks_ends_all_of_them(code: str, said: str) -> None:
    ranks = start_ranks(2, FAILING.replace("CODE", code))
    errors = "".join(rank.communicate(timeout=120)[1] for rank in ranks)
    assert all(rank.returncode for rank in ranks)
    sentences = [line for line in errors.splitlines() if line.startswith("faustnet.errors.FaustnetError")]
    assert len(sentences) == 1, errors
    assert re.search(said, sentences[0])


MISUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "NaN in a step": (lambda: step(prepared(), X * math.nan), "x must contain finite values only"),
    "NaN": (lambda: ready().predict(X * math.nan), "x must contain finite values only"),
    "one sample": (lambda: ready().predict(X[0]), "x must be a batch of inputs like the network's example"),
    "another shape": (lambda: ready().embed(X[..., :4]), "x must be a batch of inputs like the network's example"),
    "a layer in place of a list": (lambda: ready().predict(X, layers=1), "layers must be one or more"),  # type: ignore[arg-type]
    "no network": (lambda: faustnet.FaustRepresentative(nn.Linear(3, 3), 10), "network must be a faustnet.Network"),  # type: ignore[arg-type]
    "classes": (lambda: faustnet.FaustPrototype(made(dense).network, "10"), "classes must be a whole number"),  # type: ignore[arg-type]
    "an option": (lambda: faustnet.FaustPrototype(made(dense).network, 10, scale=-1), r"^scale must be positive, got -1\.$"),
    "an example of one sample": (
        lambda: faustnet.Network([nn.Linear(4, 4)], example=torch.zeros(4)),
        r"example must be one or more inputs, \(R, …\), got one of shape \(4,\): use x\[:1\], not x\[0\]",
    ),
    "a scheduler": (lambda: trainer(scheduler=lr_scheduler.StepLR), "scheduler must be a function"),
    "a callback": (lambda: trainer(callbacks=print), "callbacks must be a list"),
    "the class of callbacks": (lambda: trainer(callbacks=[faustnet.Callback]), "callbacks must be a list"),
    "a seed": (lambda: trainer(seed="a"), "seed must be a whole number"),
    "parallel": (lambda: trainer(parallel="all"), "parallel must be data, layers, or a grid"),
    "a name": (lambda: faustnet.Trainer(made(dense), train="digits", optimiser=adamw), "train must be a pair of arrays"),
    "a dictionary": (
        lambda: faustnet.Trainer(made(dense), train={"x": X}, optimiser=adamw),
        "train must be a pair of arrays",
    ),
    "no training": (lambda: trainer(test=(X, Y)).evaluate(), "evaluate must be called after fit"),
    "trifecta": (
        lambda: faustnet.Trifecta(faustnet.Network([nn.Linear(4, 4)], example=torch.zeros(1, 4)), 10),
        "network must take images",
    ),
}


def prepared() -> faustnet.Method:
    method = made(dense)
    method.prepare((X, Y))
    return method


def step(method: faustnet.Method, x: Tensor) -> Tensor:
    return method.train_step(x, Y, method.optimisers(adamw))


def ready() -> faustnet.Method:
    method = made(dense)
    method.prepare((X, Y))
    method.make_ready((X, Y))
    return method


def trainer(**arguments: Any) -> faustnet.Trainer:
    return faustnet.Trainer(made(dense), train=(X, Y), optimiser=adamw, **arguments)


@pytest.mark.parametrize("mistake", MISUSED)
def test_a_misused_argument_is_refused_in_a_sentence(mistake: str) -> None:
    call, sentence = MISUSED[mistake]
    with pytest.raises(FaustnetError, match=sentence):
        call()


def test_weights_that_are_not_finite_cannot_be_made_ready() -> None:
    method = prepared()
    with torch.no_grad():
        next(method.parameters())[0] = math.nan
    with pytest.raises(FaustnetError, match="is no longer finite: train again"):
        method.make_ready((X, Y))


class Half(faustnet.FaustRepresentative):
    """Forgets half of the classes."""

    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x)[:, :, : CLASSES // 2]


def test_scores_of_some_classes_only_are_refused_in_evaluations_and_predictions() -> None:
    said = r"^Half\.scores must have the shape \(voters, B, C\), here \(2, 72, 4\), got \(2, 72, 2\): return"
    with pytest.raises(FaustnetError, match=said):
        trained(made(kind=Half), epochs=1, test=(X, Y))
    method = trained(made(kind=Half), epochs=1).method
    with pytest.raises(FaustnetError, match=said):
        method.predict(X)
