"""Compare the time of a training step of two versions of the package, each started several times, in turns.

    python benchmarks/versions.py OTHER/src src --starts 10 --device cuda

Prints the fastest and the slowest start of each system, in microseconds. On a GPU the wavefront's time varies by start.
"""

import argparse
import json
import os
import subprocess
import sys

LAYERS = (4, 16)
MEASURE = """
import json, sys, torch
from faustnet.bench.steps import Case, measure
device, seconds, layers = torch.device(sys.argv[1]), float(sys.argv[2]), map(int, sys.argv[3:])
precision = "bfloat16" if device.type == "cuda" else "float32"
print(json.dumps({number: measure(Case(layers=number, precision=precision), device, seconds) for number in layers}))
"""


def one_start(source: str, device: str, seconds: float) -> dict[str, dict[str, float]]:
    """Return microseconds per step by number of layers and system, from a new process."""
    words = [sys.executable, "-c", MEASURE, device, str(seconds), *map(str, LAYERS)]
    found = subprocess.run(words, env={**os.environ, "PYTHONPATH": source}, check=True, capture_output=True, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs=2, help="the folders src of two versions")
    parser.add_argument("--starts", type=int, default=10, help="process starts of each version")
    parser.add_argument("--seconds", type=float, default=0.8, help="time for each number of layers")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    given = parser.parse_args()
    starts: dict[str, list[dict[str, dict[str, float]]]] = {source: [] for source in given.sources}
    for _ in range(given.starts):
        for source, found in starts.items():
            found.append(one_start(source, given.device, given.seconds))
    for source, found in starts.items():
        for layers, systems in found[0].items():
            for system in systems:
                times = [one[layers][system] for one in found]
                print(f"{source}  {layers} layers  {system}  {min(times):.1f} to {max(times):.1f}")


if __name__ == "__main__":
    main()
