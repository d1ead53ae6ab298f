"""What the tests share: small real data, the large sets where they are, and the command line in this process."""

import gc
import os
import shutil
import signal
from pathlib import Path

# A job in the background ignores Ctrl-C, and so would all processes that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Small tensors gain nothing by threads, and on a busy machine they would wait on each other.
os.environ["OMP_NUM_THREADS"] = "1"

# Collections of garbage visit all modules and tests: the default is one in every 700 new objects.
gc.set_threshold(20_000)

# Files in memory, because every run syncs its files to the disk many times.
MEMORY = Path("/dev/shm")  # of Linux
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2**32:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported: its kernels then run on the CPU

import processes
from browser import chromium, is_installed
from faustnet.cli import main
from faustnet.data import DataSet, ImageSource, Scaling, load_data
from faustnet.methods import Method, build
from faustnet.nn.architectures import NetworkSettings
from faustnet.system.randomness import seeded
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings

SMALL = NetworkSettings((64, 48), 32)


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput") and session.config.getoption("numprocesses", None):
        return  # the tests run in other processes
    processes.warm_up()


@pytest.fixture(scope="session")
def digits() -> DataSet:
    return load_data("digits")


@pytest.fixture(scope="session")
def source(digits: DataSet) -> ImageSource:
    """320 training images of digits."""
    images = digits.train.take(torch.arange(320))
    return ImageSource(images, Scaling.of(images), digits.class_names)


@pytest.fixture(scope="session")
def held_out(digits: DataSet, source: ImageSource) -> ImageSource:
    return ImageSource(digits.test, source.scaling, digits.class_names)


@pytest.fixture(scope="session")
def large_data() -> Path:
    """The folder of the large data sets."""
    folder = os.environ.get("FAUSTNET_DATA")
    if not folder:
        pytest.skip("FAUSTNET_DATA does not name a folder with the large data sets")
    return Path(folder)


@pytest.fixture
def all_cores() -> Iterator[None]:
    """For the few tests that train networks of full size, where no other tests run beside them."""
    torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else os.cpu_count() or 1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def one_operator_table() -> Iterator[None]:
    """For tests that export models: torch builds its table of ONNX operators once, and not for each model."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


def fitting(name: str, network: NetworkSettings) -> NetworkSettings:
    """What is nearest to this network of those that the method can have, for ten classes."""
    if name == "cwc":
        return replace(network, widths=tuple(-(-width // 10) * 10 for width in network.widths))
    if name == "trifecta":
        return replace(network, kind="vgg", passes_on="activation", widths=tuple(width // 2 for width in network.widths))
    return network


def small_method(name: str, network: NetworkSettings = SMALL, seed: int = 0, **options: object) -> Method:
    """A method for digits, with fresh weights."""
    with seeded(seed):
        return build(name, (1, 8, 8), 10, fitting(name, network), options)


def started(name: str, train: ImageSource, network: NetworkSettings = SMALL, **options: object) -> Method:
    method = small_method(name, network, **options)
    with seeded(1):
        method.start(train)
    return method


def small_trainer(
    name: str,
    train: ImageSource,
    held_out: ImageSource,
    *,
    network: NetworkSettings = SMALL,
    optimiser: OptimiserSettings | None = None,
    options: dict[str, object] | None = None,
    seed: int = 0,
    **training: object,
) -> TrainingLoop:
    settings = TrainingSettings(**{"epochs": 2, "batch_size": 64, **training})
    method = small_method(name, network, seed, **(options or {}))
    return TrainingLoop(method, train, held_out, settings, optimiser or OptimiserSettings(), seed)


def run_to_end(trainer: TrainingLoop) -> TrainingLoop:
    assert trainer.run(lambda: None, lambda epoch: None)
    return trainer


@dataclass
class Answer:
    code: int
    out: str
    err: str
    sentence: str = field(init=False)

    def __post_init__(self) -> None:
        self.sentence = self.err.strip().splitlines()[-1] if self.err.strip() else ""


@pytest.fixture
def faustnet(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Calls the real entry point, and takes what it prints."""

    def call(*words: object) -> Answer:
        with pytest.raises(SystemExit) as exit_:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(int(exit_.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not is_installed():
        pytest.skip("chromium and chromedriver are not installed")
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver
