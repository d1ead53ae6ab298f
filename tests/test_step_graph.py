"""Errors while a step is recorded, with a stand-in for CUDA, which refuses to end a recording after an error.

What only a GPU can show is in test_gpu.py and test_gpu_own_model.py.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from faustnet.errors import FaustnetError
from faustnet.training.schedules import step_graph
from faustnet.training.schedules.step_graph import Recording


@pytest.fixture(autouse=True)
def left(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Replace CUDA. The list has an entry for each recording that the generator has left."""

    @contextmanager
    def record(*arguments: object, **options: object) -> Iterator[None]:
        assert not gc.isenabled()
        try:
            yield
        except BaseException:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904

    found: list[bool] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(step_graph, "leave_recording", lambda: found.append(True))
    return found


def raising(error: BaseException) -> Callable[[], None]:
    """Return work that handles an error of its own before it raises this one."""

    def work() -> None:
        try:
            {}["mask"]
        except KeyError:
            raise error  # noqa: B904

    return work


def test_the_error_of_the_work_is_named_not_one_that_was_handled_nor_that_of_the_end(left: list[bool]) -> None:
    waits = RuntimeError("operation not permitted when stream is capturing\nSearch for …")
    expected = r"cannot be recorded as a CUDA graph \(operation not permitted when stream is capturing\): no layer or loss"
    with pytest.raises(FaustnetError, match=expected) as raised:
        Recording(raising(waits))
    assert raised.value.__cause__ is waits, "its traceback shows the line of the user's module"
    assert left == [True]
    assert gc.isenabled()


@pytest.mark.parametrize(
    "error", [ValueError("a shape"), FaustnetError("a sentence"), KeyboardInterrupt(), torch.OutOfMemoryError("memory")]
)
def test_errors_that_are_not_about_the_recording_are_raised_as_they_are(error: BaseException, left: list[bool]) -> None:
    with pytest.raises(type(error)) as raised:
        Recording(raising(error))
    assert raised.value is error
    assert left == [True]
    assert gc.isenabled()


def test_an_error_that_is_being_handled_outside_is_not_named() -> None:
    try:
        raise torch.OutOfMemoryError("with a larger batch")
    except torch.OutOfMemoryError:
        with pytest.raises(FaustnetError, match="not permitted"):
            Recording(raising(RuntimeError("not permitted")))


def test_collection_stays_off_where_it_was_off(left: list[bool]) -> None:
    gc.disable()
    try:
        Recording(lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert not left
