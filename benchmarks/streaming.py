"""Compare training from shards with training from memory, on 8 GB of images.

    python benchmarks/streaming.py results/streaming.json --scratch FOLDER      three minutes, 8 GB of disk, 9 GB of memory

Two processes train in turn, several hundred steps in total, so that changes of the machine's speed affect both. The
results are the medians over the turns, and over the ratios of neighbouring turns. Before each turn from shards, the
operating system is asked to drop the files from its cache. The peak is the largest resident size of the process,
including the pass over the data for standardisation. Images have CIFAR-10's shape and consist of noise with a pattern for
each class. The number of threads is PyTorch's default or OMP_NUM_THREADS.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faustnet.data import load_data
from faustnet.report.tables import print_table
from faustnet.runs.recipes import as_table, recipe_from
from faustnet.runs.session import set_up
from faustnet.system.devices import choose_device
from faustnet.system.environment import environment

SHARDS, IMAGES, TESTED, CLASSES = 31, 84_000, 1_000, 10  # 8.0 GB
SHAPE = (3, 32, 32)
TURNS, STEPS, UNCOUNTED = 11, 52, 12  # the first steps of a turn use batches that were read between turns
WAYS = {"memory": "never", "files": "always"}


def make(folder: Path) -> int:
    """Write the data set and return its size in bytes."""
    random = np.random.default_rng(0)
    patterns = random.integers(128, size=(CLASSES, *SHAPE), dtype=np.uint8)
    noise = random.integers(256, size=(IMAGES, *SHAPE), dtype=np.uint8) // 2
    size = 0
    for part, shards, count in (("train", SHARDS, IMAGES), ("test", 1, TESTED)):
        (folder / part).mkdir()
        for number in range(shards):
            labels = np.arange(count) % CLASSES
            images = noise[:count] ^ np.uint8(number)  # different in each shard
            images.reshape(-1, CLASSES, *SHAPE)[:] += patterns
            for name, array in (("x", images), ("y", labels)):
                with (folder / part / f"{name}-{number:05d}.npy").open("wb") as file:
                    np.save(file, array)
                    file.flush()
                    os.fsync(file.fileno())  # only data on the disk can be dropped from the cache
            size += images.nbytes
    return size


def forget(folder: Path) -> None:
    """Ask the operating system to drop these files from its cache."""
    for path in folder.rglob("*.npy"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def recipe_for(way: str) -> Any:
    return recipe_from({"data": {"stream": WAYS[way]}, "training": {"epochs": 1, "evaluate_every": 1}})


def work(way: str, folder: str, device: str, threads: int) -> None:
    """Run in both processes: train one turn for each line of input and print its measurements."""
    torch.set_num_threads(threads)
    where = choose_device(device)
    _, trainer = set_up(recipe_for(way), load_data(folder, stream=WAYS[way]), where)
    done, begin, used = 0, 0.0, 0.0

    def on_batch() -> None:
        nonlocal done, begin, used
        done += 1
        if done in (UNCOUNTED, STEPS) and where.type == "cuda":
            torch.cuda.synchronize()
        if done == UNCOUNTED:
            begin, used = time.perf_counter(), time.process_time()
        if done == STEPS:
            print(time.perf_counter() - begin, time.process_time() - used, flush=True)
            done = 0
            if not sys.stdin.readline():
                trainer.stop()

    print("ready", flush=True)
    sys.stdin.readline()
    trainer.run(on_batch, lambda epoch: None)
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")))


class Side:
    """A process that trains from shards or from memory when asked to."""

    def __init__(self, way: str, folder: Path, device: str, threads: int):
        words = [sys.executable, __file__, "work", way, str(folder), device, str(threads)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.speeds: list[float] = []  # steps per second
        self.used: list[float] = []  # milliseconds of CPU time per step

    def hear(self) -> str:
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit("One of the two processes ended unexpectedly, possibly because of too little memory.")
        return line

    def take_turn(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        seconds, used = map(float, self.hear().split())
        self.speeds.append((STEPS - UNCOUNTED) / seconds)
        self.used.append(1000 * used / (STEPS - UNCOUNTED))

    def result(self) -> dict[str, Any]:
        self.process.stdin.close()
        return {
            "steps_per_second": round(statistics.median(self.speeds), 2),
            "turns": [round(speed, 2) for speed in self.speeds],
            "processor_ms_per_step": round(statistics.median(self.used), 1),
            "peak_gb": round(int(self.hear()) / 1e9, 3),
        }


def measure(folder: Path, device: str, threads: int) -> dict[str, Any]:
    sides = {way: Side(way, folder, device, threads) for way in WAYS}
    try:
        for side in sides.values():
            side.hear()
        for _ in range(TURNS):
            for way, side in sides.items():
                if way == "files":
                    forget(folder)
                side.take_turn()
        found: dict[str, Any] = {way: side.result() for way, side in sides.items()}
    finally:
        for side in sides.values():
            side.process.kill()
            side.process.wait()
    # Compare neighbouring turns, so that temporary load affects both.
    ratios = [b / a for a, b in zip(sides["memory"].speeds, sides["files"].speeds, strict=True)]
    return {**found, "ratio": round(statistics.median(ratios), 3)}


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:5], threads=int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scratch", type=Path, help="folder for the generated images")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the images
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="streaming-", dir=asked.scratch) as folder:
        begin = time.perf_counter()
        size = make(Path(folder))
        print(f"{size / 1e9:.1f} GB of images made in {time.perf_counter() - begin:.0f} s")
        found = measure(Path(folder), asked.device, threads)
    about = {
        "environment": environment(choose_device(asked.device), seed=0),
        "recipe": as_table(recipe_for("files")),
        "bytes": size,
        "page_cache": "dropped before each turn from files",
        "load": os.getloadavg()[0],  # load average, including these processes
    }
    asked.out.write_text(json.dumps({**about, **found}, indent=1) + "\n")
    columns = {"steps_per_second": "steps a second", "processor_ms_per_step": "processor, ms a step", "peak_gb": "peak, GB"}
    rows = [(way, *(str(found[way][key]) for key in columns)) for way in WAYS]
    print_table(("images in", *columns.values()), rows, numbers=tuple(columns.values()))
    print(f"files ÷ memory: {found['ratio']:.2f}")


if __name__ == "__main__":
    main()
