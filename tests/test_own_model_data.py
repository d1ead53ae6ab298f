"""Data of every kind trains a user's own network."""

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import faustnet
from faustnet.data import sources
from faustnet.system.randomness import seeded
from own_models import BATCH, CLASSES, SAMPLES, adamw, data, groups, made, trained


class Items(Dataset[Any]):
    """A map-style data set that counts how often an item is read."""

    def __init__(self) -> None:
        self.x, self.y = data()
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        self.read.append(position)
        return self.x[position], int(self.y[position])


class WithTargets(Items):
    def __init__(self) -> None:
        super().__init__()
        self.targets = self.y.tolist()


class Pictures(Items):
    """Items are images of Pillow."""

    def __getitem__(self, position: int) -> tuple[Any, int]:
        x, y = super().__getitem__(position)
        return Image.fromarray(((x[0] * 30 + 128).clamp(0, 255)).numpy().astype(np.uint8)), y


class Stream(IterableDataset[Any]):
    """Its length is not known."""

    def __init__(self, repeats: int = 1):
        self.repeats = repeats

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        x, y = data()
        for _ in range(self.repeats) if self.repeats else count():
            for sample, label in zip(x, y, strict=True):
                yield sample, int(label)


def weights(train: Any, **options: Any) -> dict[str, Tensor]:
    return trained(made(), 2, train=train, **options).method.state_dict()


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
@pytest.mark.parametrize(
    "kind", ["numpy", "list", "list of tensors", "tensor data set", "data set", "targets", "subset", "uint16 labels"]
)
def test_a_form_of_the_same_data_learns_the_same(kind: str, schedule: str) -> None:
    x, y = data()
    kinds: dict[str, Any] = {
        "numpy": (x.numpy(), y.numpy()),
        "list": [x.tolist(), y.tolist()],
        "list of tensors": (list(x), list(y)),
        "tensor data set": TensorDataset(x, y),
        "data set": Items(),
        "targets": WithTargets(),
        "subset": Subset(WithTargets(), range(SAMPLES)),
        "uint16 labels": (x.numpy(), y.numpy().astype(np.uint16)),
    }
    assert_equal(weights(kinds[kind], schedule=schedule), weights(data()))


def test_a_table_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = data()

    def method() -> faustnet.Method:
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(64, 16), nn.ReLU()).double()]
        return faustnet.FaustRepresentative(faustnet.Network(blocks, 6, example=x[:1].flatten(1)), CLASSES).double()

    table = pandas.DataFrame(x.flatten(1).numpy()), pandas.Series(y.numpy())
    one, other = (trained(method(), 2, train=train) for train in (table, (x.flatten(1), y)))
    assert_equal(one.method.state_dict(), other.method.state_dict())


def test_a_table_with_another_order_of_columns_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = data()
    method = faustnet.FaustRepresentative(
        faustnet.Network([nn.Linear(64, 16)], 6, example=x[:1].flatten(1).float()), CLASSES
    )
    table = pandas.DataFrame(x.flatten(1).float().numpy())
    other = (table[table.columns[::-1]], y.numpy())
    with pytest.raises(faustnet.FaustnetError, match="test must have the columns of train in the same order, got '63'"):
        faustnet.Trainer(method, train=(table, y.numpy()), test=other, optimiser=adamw)
    trainer = trained(method, 1, train=(table, y.numpy()))
    with pytest.raises(faustnet.FaustnetError, match="data must have the columns of the training data in the same order"):
        trainer.evaluate(other)


def test_known_targets_save_reading_all_items() -> None:
    dataset = WithTargets()
    faustnet.Trainer(made(), train=dataset, optimiser=adamw)
    assert len(dataset.read) < 12


def test_targets_that_contradict_the_items_are_not_used() -> None:
    dataset = WithTargets()
    dataset.targets = [(label + 1) % CLASSES for label in dataset.targets]
    assert_equal(weights(dataset), weights(data()))


def test_images_of_pillow() -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())]
    method = faustnet.FaustRepresentative(faustnet.Network(blocks, 6, example=torch.zeros(1, 1, 8, 8)), CLASSES)
    trainer = trained(method, 12, train=Pictures(), test=Pictures())
    assert trainer.evaluate().accuracy > 0.8


def test_every_kind_of_pillow_image_becomes_values_from_0_to_1() -> None:
    grey = np.array([[0, 255], [51, 0]], np.uint8)
    image = Image.fromarray(grey)
    deep = grey.astype(np.uint16) * 257
    big = Image.frombytes("I;16B", (2, 2), deep.astype(">u2").tobytes())
    wanted = torch.from_numpy(grey) / 255
    for one in (image, Image.fromarray(deep), Image.fromarray(deep.astype(np.int32)), big):
        torch.testing.assert_close(sources.as_tensor(one), wanted[None], msg=one.mode)
    assert sources.as_tensor(image.point(lambda value: 255 * (value > 100)).convert("1")).unique().tolist() == [0, 1]
    colours = Image.fromarray(np.stack([grey, grey // 3, 255 - grey], axis=2))
    palette = colours.convert("P", palette=Image.Palette.ADAPTIVE)
    torch.testing.assert_close(sources.as_tensor(palette), sources.as_tensor(colours))
    assert sources.as_tensor(colours.convert("RGBA")).shape == (4, 2, 2)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (np.ones((2, 2), np.float32), "must have whole numbers as pixels, got mode F"),
        (np.full((2, 2), 70_000, np.int32), "must have pixels from 0 to 65535 if their mode is I, got 70000 to 70000"),
    ],
)
def test_pillow_images_of_unknown_range_are_refused(values: np.ndarray, sentence: str) -> None:
    with pytest.raises(faustnet.FaustnetError, match=sentence):
        sources.as_tensor(Image.fromarray(values))


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf"), 1e30])
def test_a_network_of_token_ids_refuses_other_values(value: float) -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(12, 8), nn.ReLU())]
    method = faustnet.FaustRepresentative(faustnet.Network(blocks, 6, example=torch.zeros(1, 3, dtype=torch.long)), CLASSES)
    x, y = torch.ones(16, 3, dtype=torch.float64), torch.arange(16) % CLASSES
    assert trained(method, 1, train=(x, y), batch_size=8).history[0].losses
    assert method.predict(x).shape == y.shape
    x[0, 1] = value
    dataset = TensorDataset(x, y)
    sentence = (
        "{} must contain whole numbers that fit into torch.int64, the type of the network's example, got {}: convert them"
    )
    cases = {
        "train": (x, y),
        "Item 0 of the data set": Subset(dataset, range(16)),
        "Batch 1 of train": DataLoader(dataset, 8),
    }
    for name, train in cases.items():
        with pytest.raises(faustnet.FaustnetError, match=re.escape(sentence.format(name, value))):
            trained(method, 1, train=train, batch_size=None)
    with pytest.raises(faustnet.FaustnetError, match=r"x must contain (whole numbers|finite values)"):
        method.predict(x)


def test_a_later_batch_of_other_values_than_token_ids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "STREAM_SAMPLE", 8)
    blocks = [nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(12, 8), nn.ReLU())]
    method = faustnet.FaustRepresentative(faustnet.Network(blocks, 6, example=torch.zeros(1, 3, dtype=torch.long)), CLASSES)
    x, y = torch.ones(16, 3, dtype=torch.float64), torch.arange(16) % CLASSES
    x[8] = 0.5
    with pytest.raises(faustnet.FaustnetError, match="Batch 2 of the data loader must contain whole numbers"):
        trained(method, 1, train=DataLoader(TensorDataset(x, y), 8), batch_size=None)


@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
@pytest.mark.parametrize("optimiser", [adamw, groups])
def test_a_stream_learns_what_its_batches_teach(schedule: str, optimiser: Any) -> None:
    """A stream and a data loader of the same order; all batches of the stream in turn in an own loop."""
    options = {"schedule": schedule, "optimiser": optimiser}
    x, y = data()
    stream = weights(Stream(), **options)
    loader = weights(DataLoader(Items(), BATCH), batch_size=None, **options)
    workers = weights(DataLoader(Items(), BATCH, num_workers=2), batch_size=None, **options)
    assert_equal(stream, loader)
    assert_equal(stream, workers)
    method = made()
    with seeded(1):  # as in the trainer
        method.prepare(data())
    optimisers = method.optimisers(optimiser)
    for _ in range(2):
        for first in range(0, SAMPLES - BATCH + 1, BATCH):
            method.train_step(x[first : first + BATCH], y[first : first + BATCH], optimisers)
    assert_equal(dict(method.named_parameters()), {name: stream[name] for name, _ in method.named_parameters()})


@pytest.mark.parametrize(
    ("sizes", "got"), [([8, 8, 5, 8], "5 in batch 3"), ([8, 8, 12, 8], "12 in batch 3"), ([8, 9], "9 in batch 2")]
)
def test_batches_of_several_sizes_are_refused(sizes: list[int], got: str) -> None:
    batches = [[*range(size)] for size in sizes]
    loader = DataLoader(TensorDataset(*data()), batch_sampler=batches)
    with pytest.raises(faustnet.FaustnetError, match=f"must have batches of 8 samples, and only .* got {got}: make"):
        trained(made(), 1, train=loader, batch_size=None)


def test_an_incomplete_last_batch_is_dropped_also_that_of_each_worker() -> None:
    batches = [[*range(8)], [*range(8, 16)], [*range(16, 21)]]
    several = DataLoader(TensorDataset(*data()), batch_sampler=batches)
    stream = DataLoader(Stream(), 7, num_workers=2)  # each worker reads the whole stream
    for loader, number in ((several, 2), (stream, 2 * (SAMPLES // 7))):
        trainer = trained(made(), 1, train=loader, batch_size=None)
        assert trainer.loop is not None
        assert trainer.loop.batches == number


def test_a_stream_longer_than_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "STREAM_SAMPLE", 20)
    trainer = trained(made(), 3, train=Stream(repeats=12), test=Stream())
    assert isinstance(trainer.train, sources.StreamSource)
    assert len(trainer.train.labels) == 20
    assert [len(epoch.losses) for epoch in trainer.history] == [2, 2, 2]
    assert trainer.evaluate().accuracy > 0.9
    assert sum(map(sum, trainer.evaluate().confusion)) == SAMPLES, "all of the test stream is evaluated"


def test_an_endless_stream_is_ended_by_a_callback() -> None:
    class Stop(faustnet.Callback):
        batches = 0

        def on_batch(self, trainer: faustnet.Trainer) -> None:
            self.batches += 1
            if self.batches % 50 == 0:
                trainer.stop()

    stop = Stop()
    trainer = trained(made(), 1, train=Stream(repeats=0), callbacks=[stop])
    assert (stop.batches, trainer.history) == (50, [])
    trainer.fit(1, verbose=False)
    assert stop.batches == 100
    assert trainer.evaluate(data()).accuracy > 0.9


@pytest.mark.parametrize("optimiser", [adamw, groups])
def test_a_stopped_stream_continues_with_its_next_batch_and_learning_rate(optimiser: Any) -> None:
    class StopAt(faustnet.Callback):
        left = 3

        def on_batch(self, trainer: faustnet.Trainer) -> None:
            self.left -= 1
            if self.left == 0:
                trainer.stop()

    def scheduler(made: Any) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(made, 0.8)

    options = {"train": Stream(), "optimiser": optimiser, "scheduler": scheduler, "scheduler_every": "batch"}
    trainer = trained(made(), 2, callbacks=[StopAt()], **options)
    assert trainer.history == []
    trainer.fit(2, verbose=False)
    whole = trained(made(), 2, **options)
    assert_equal(trainer.method.state_dict(), whole.method.state_dict())
    assert [epoch.learning_rate for epoch in trainer.history] == [epoch.learning_rate for epoch in whole.history]
