"""Compare training on several ranks with training in one process: results and speed.

    python benchmarks/ranks.py equality   # differences after 100 steps in double precision
    python benchmarks/ranks.py pipeline   # steps per second, and the time of messages between processes

Each command writes its part of results/distributed.json. `python benchmarks/ranks_page.py` then writes the tables of
docs/scaling.md. Ranks are processes on this machine with one thread each.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which optimisers import later, in every fork
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch import distributed as dist

from faustnet.data import Augmentation, Images, ImageSource, Scaling
from faustnet.methods import METHODS, LocalMethod, build
from faustnet.nn.architectures import NetworkSettings
from faustnet.system.environment import environment
from faustnet.system.randomness import seeded
from faustnet.training.distributed import RankGrid, grid_size
from faustnet.training.distributed.communicator import broadcast
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings

RESULTS = Path(__file__).parents[1] / "results" / "distributed.json"
ARRANGEMENTS = {2: ("2x1", "1x2"), 4: ("4x1", "1x4", "2x2")}  # batch × layers, by the number of ranks
BATCH, BATCHES = 29, 4  # per epoch; no arrangement divides this batch size evenly
CLASSES = 5


DENSE = NetworkSettings((20,) * 5, 8, dropout=0.1, input_dropout=0.1)
CONVOLUTIONS = NetworkSettings((10,) * 4, 8, kind="residual", pools=(2,), head=8, dropout=0.1)
ADAM = OptimiserSettings(weight_decay=0.01, warmup=0.1)


@dataclass(frozen=True)
class Case:
    """A training in double precision on random images."""

    method: str
    network: NetworkSettings = DENSE
    options: dict[str, Any] = field(default_factory=dict)
    optimiser: OptimiserSettings = ADAM


LOCAL = [name for name, method in METHODS.items() if issubclass(method, LocalMethod)]
ALL_TERMS = {"mixup": 0.2, "contrast": 0.5, "matching": 0.5, "final_scale": 0.1}
CASES = {
    **{name: Case(name) for name in LOCAL},
    "representatives, batch norm": Case("faust-representative", NetworkSettings((20,) * 4, 8, norm="batch")),
    "representatives, residual blocks": Case("faust-representative", CONVOLUTIONS),
    "prototypes, learned length, all terms, muon": Case(
        "faust-prototype",
        NetworkSettings((24, 20, 16, 12), 8, length="learned"),
        {"prototypes": 2, **ALL_TERMS},
        OptimiserSettings("muon"),
    ),
    "cwc, convolutions": Case("cwc", replace(CONVOLUTIONS, kind="vgg", widths=(20,) * 4), {}, OptimiserSettings("sgd")),
}


def trainer(case: Case, steps: int, arrangement: RankGrid | None = None) -> TrainingLoop:
    """Train for the given steps, at least one epoch."""
    count = BATCH * BATCHES
    pixels = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = Images(pixels, torch.arange(count) % CLASSES)
    scaling = Scaling.of(images)
    exact = Scaling(scaling.mean.double(), scaling.deviation.double())
    source = ImageSource(images, exact, [str(number) for number in range(CLASSES)], Augmentation(flip=True, crop=1))
    with seeded(0):
        method = build(case.method, images.shape, CLASSES, case.network, case.options).double()
    settings = TrainingSettings(epochs=steps // BATCHES, batch_size=BATCH, schedule="sequential", evaluate_every=10**6)
    return TrainingLoop(method, source, source, settings, case.optimiser, seed=0, communicator=arrangement)


def outcome(trained: TrainingLoop) -> dict[str, Tensor]:
    """Return the final state and all losses."""
    assert trained.run(lambda: None, lambda epoch: None)
    tensors, facts = trained.state_on_host()
    losses = [epoch["losses"] for epoch in facts["history"]]
    return {name: tensor.clone() for name, tensor in tensors.items()} | {"losses": torch.tensor(losses)}


def on_ranks(ranks: int, work: Callable[..., None], *about: Any) -> None:
    """Run a function on the given number of ranks. The ranks are forks, which saves the time of importing torch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    make = get_context("fork").Process
    processes = [make(target=_as_rank, args=(rank, ranks, port, work, *about)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    assert not any(codes), f"a rank has failed: {codes}"


def _as_rank(rank: int, ranks: int, port: int, work: Callable[..., None], *about: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    work(*about)
    dist.destroy_process_group()


def run_cases(names: Sequence[str], steps: int, folder: Path) -> None:
    """Run on every rank: start every case in each arrangement, stop it after a batch at the request of the last rank, and
    continue it in the next arrangement. The first rank writes the results."""
    arrangements = {name: RankGrid.create(*grid_size(name, dist.get_world_size()), torch.device("cpu")) for name in names}
    begun = {}
    for name, arrangement in arrangements.items():
        for label, case in CASES.items():
            half = trainer(case, steps, arrangement)
            is_last = arrangement.rank == dist.get_world_size() - 1
            assert not half.run(half.stop if is_last else lambda: None, lambda epoch: None)
            assert 0 < half.batch < BATCHES, "stopped in the middle of an epoch"
            begun[name, label] = broadcast(half.state_on_host())
    for before, name in zip(names, [*names[1:], names[0]], strict=True):
        for number, (label, case) in enumerate(CASES.items()):
            whole = trainer(case, steps, arrangements[name])
            whole.restore(*begun[before, label])
            found = outcome(whole)
            if arrangements[name].is_first:
                save_file(found, folder / f"{name}-{number}.safetensors")


def compared(steps: int) -> Iterator[dict[str, Any]]:
    """Return the largest difference from one process, relative to the largest value of a tensor, by case and arrangement."""
    with tempfile.TemporaryDirectory() as folder:
        for ranks, arrangements in ARRANGEMENTS.items():  # before any computation: forks do not inherit threads
            on_ranks(ranks, run_cases, arrangements, steps, Path(folder))
        expected = [outcome(trainer(case, steps)) for case in CASES.values()]
        for arrangements in ARRANGEMENTS.values():
            for name in arrangements:
                for number, (label, wanted) in enumerate(zip(CASES, expected, strict=True)):
                    found = load_file(Path(folder) / f"{name}-{number}.safetensors")
                    assert found.keys() == wanted.keys()
                    worst = max(difference(found[key], wanted[key]) for key in wanted)
                    yield {"arrangement": name, "case": label, "steps": steps, "difference": worst}


def difference(one: Tensor, other: Tensor) -> float:
    if not other.is_floating_point():
        return 0.0 if torch.equal(one, other) else float("inf")
    scale = other.abs().max().item()
    return (one - other).abs().max().item() / scale if scale else one.abs().max().item()


LAYERS, WIDTH, EMBEDDING, ROWS = 8, 800, 64, 256  # of the timed training
TIMED = 60  # steps per epoch
SIDE_BY_SIDE = {"one process": 1, "1x2": 2, "2x1": 2}  # number of ranks


def time_steps(name: str, file: Path) -> None:
    """Run on every rank: one epoch to warm up, then one timed epoch, including its end."""
    count, ranks = ROWS * TIMED, dist.get_world_size()
    arrangement = RankGrid.create(*grid_size(name, ranks), torch.device("cpu")) if ranks > 1 else None
    pixels = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = Images(pixels, torch.arange(count) % 10)
    source = ImageSource(images, Scaling.of(images), [str(number) for number in range(10)])
    with seeded(0):
        network = NetworkSettings((WIDTH,) * LAYERS, EMBEDDING)
        method = build("faust-representative", images.shape, 10, network, {})
    settings = TrainingSettings(epochs=2, batch_size=ROWS, schedule="sequential", evaluate_every=2)
    made = TrainingLoop(method, source, source, settings, OptimiserSettings(), seed=0, communicator=arrangement)
    schedule, batches = made.schedule, torch.arange(count).view(TIMED, ROWS)
    for _ in range(2):
        dist.barrier()
        began = time.perf_counter()
        schedule.begin(batches, torch.full((TIMED,), 1e-4, dtype=torch.float64), 0)
        for _ in range(TIMED):
            schedule.step()
        schedule.drain()
        seconds = time.perf_counter() - began
    if dist.get_rank() == 0:
        file.write_text(json.dumps(TIMED / seconds))


def time_messages(repeats: int, file: Path) -> None:
    """Run on both ranks: send all messages of a layer's step."""
    rows, weights = ROWS + 10, WIDTH * (WIDTH + 1 + EMBEDDING)
    found = []
    for what, size in (("one number", 1), ("activations", rows * WIDTH), ("gradients", weights)):
        tensor = torch.zeros(size)
        found.append(_timed(f"send {what}", tensor, repeats, lambda tensor=tensor: _send(tensor)))
    half = torch.zeros(rows * EMBEDDING // 2)
    parts = [torch.empty_like(half) for _ in range(2)]
    found.append(_timed("gather embeddings", half, repeats, lambda: dist.all_gather(parts, half)))
    for what, size in (("one number", 1), ("gradients", weights)):
        tensor = torch.zeros(size)
        found.append(_timed(f"sum {what}", tensor, repeats, lambda tensor=tensor: dist.all_reduce(tensor)))
    if dist.get_rank() == 0:
        file.write_text(json.dumps(found))


def _send(tensor: Tensor) -> None:
    """Send a message and receive the answer."""
    for sender in (0, 1):
        if dist.get_rank() == sender:
            dist.send(tensor, 1 - sender)
        else:
            dist.recv(tensor, sender)


def _timed(message: str, tensor: Tensor, repeats: int, work: Callable[[], object]) -> dict[str, Any]:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) / (2 if message.startswith("send") else 1))
    size = tensor.numel() * tensor.element_size()
    return {"message": message, "bytes": size, "us": statistics.median(times) * 1e6}


def measured(repeats: int) -> dict[str, Any]:
    """Measure steps per second of all arrangements in turn, and the messages."""
    rates: dict[str, list[float]] = {name: [] for name in SIDE_BY_SIDE}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        for _ in range(repeats):
            for name, ranks in SIDE_BY_SIDE.items():
                on_ranks(ranks, time_steps, name, file)
                rates[name].append(json.loads(file.read_text()))
        on_ranks(2, time_messages, 200, file)
        messages = json.loads(file.read_text())
    one = statistics.median(rates["one process"])
    lines = [
        {"arrangement": name, "steps_per_second": rate, "times_one_process": statistics.median(rate) / one}
        for name, rate in rates.items()
    ]
    about = {"layers": LAYERS, "width": WIDTH, "embedding": EMBEDDING, "batch": ROWS, "steps": TIMED}
    return {**about, "messages": messages, "rates": lines}


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def write(file: Path, part: str, content: Any) -> None:
    """Write one part of the result file, with its environment."""
    whole = read(file)
    torch.set_num_threads(1)
    whole[part] = {"environment": environment(torch.device("cpu"), seed=0), "cores": os.cpu_count(), **content}
    file.write_text(json.dumps(whole, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    equality = commands.add_parser("equality")
    equality.add_argument("--steps", type=int, default=100)
    pipeline = commands.add_parser("pipeline")
    pipeline.add_argument("--repeats", type=int, default=5)
    for command in (equality, pipeline):
        command.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "equality":
        found = list(compared(arguments.steps))
        for line in found:
            print(f"{line['arrangement']}  {line['case']:45} {line['difference']:.1e}")
        write(arguments.out, "equality", {"cases": found})
    else:
        speed = measured(arguments.repeats)
        for line in speed["rates"]:
            print(f"{line['arrangement']:12} {line['times_one_process']:.2f} of {line['steps_per_second']}")
        write(arguments.out, "pipeline", speed)


if __name__ == "__main__":
    main()
