"""Time one training step of FAUST-representative and one of plain PyTorch backprop, side by side.

    python benchmarks/step_time.py [--device cpu] [--widths 800,800,800,800] [--embedding 64] [--batch 256] [--out FILE.json]

Backprop is what anybody would write: linear layers with ReLU, a linear read-out, cross entropy, fused Adam, and no layer
norm. Both take the same random images from the same byte tensor. The steps alternate in small groups, so that a machine
that slows down slows both, and the medians are compared.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.data import Images, ImageSource, Scaling
from faustnet.devices import choose_device
from faustnet.environment import environment
from faustnet.methods import build
from faustnet.network import NetworkSettings
from faustnet.optimisers import OptimiserSettings
from faustnet.schedules import Sequential

CLASSES = 10
SHAPES = {"28×28": (1, 28, 28), "3×32×32": (3, 32, 32)}


def plain_backprop(source: ImageSource, inputs: int, widths: list[int]) -> Callable[[Tensor], None]:
    layers: list[nn.Module] = []
    for before, width in pairwise([inputs, *widths]):
        layers += [nn.Linear(before, width), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES)).to(source.labels.device)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)

    def step(index: Tensor) -> None:
        loss = functional.cross_entropy(network(source.plain(index).flatten(1)), source.labels[index])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def faust(source: ImageSource, inputs: int, widths: list[int], embedding: int) -> Callable[[Tensor], object]:
    settings = NetworkSettings(tuple(widths), embedding)
    method = build("faust-representative", inputs, CLASSES, settings, {}).to(source.labels.device)
    method.start(source)
    schedule = Sequential(method, source, OptimiserSettings().make)
    schedule.enter(0)
    return schedule.step


def side_by_side(
    steps: dict[str, Callable[[Tensor], object]], source: ImageSource, batch: int, seconds: float
) -> dict[str, float]:
    """The median time of each step, in microseconds."""
    device = source.labels.device
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in steps}
    group, end = 4, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, step in steps.items():
            batches = torch.randint(len(source.labels), (group, batch), device=device)
            wait()
            begin = time.perf_counter()
            for index in batches:
                step(index)
            wait()
            times[name].append((time.perf_counter() - begin) / group * 1e6)
    return {name: statistics.median(found[len(found) // 5 :]) for name, found in times.items()}  # the first fifth warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--widths", default="800,800,800,800")
    parser.add_argument("--embedding", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=20, help="for each image shape")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    widths = [int(width) for width in arguments.widths.split(",")]
    torch.manual_seed(0)
    results = []
    print(f"widths {arguments.widths}, embedding {arguments.embedding}, batch {arguments.batch}, on {device}")
    for name, shape in SHAPES.items():
        images = Images(torch.randint(256, (4096, *shape), dtype=torch.uint8), torch.arange(4096) % CLASSES).to(device)
        source = ImageSource(images, Scaling.of(images), [str(number) for number in range(CLASSES)])
        inputs = images.pixels[0].numel()
        found = side_by_side(
            {
                "backprop_us": plain_backprop(source, inputs, widths),
                "faust_us": faust(source, inputs, widths, arguments.embedding),
            },
            source,
            arguments.batch,
            arguments.seconds,
        )
        ratio = found["faust_us"] / found["backprop_us"]
        print(f"{name:>8}: backprop {found['backprop_us']:8.0f} µs   FAUST {found['faust_us']:8.0f} µs   ratio {ratio:.3f}")
        results.append({"images": name, **found, "ratio": ratio})
    if arguments.out:
        settings = {"widths": widths, "embedding": arguments.embedding, "batch": arguments.batch}
        content = {"environment": environment(device, seed=0), **settings, "steps": results}
        arguments.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
