"""Pages of `faustnet play`: agreement with PyTorch on 1,000 test images of MNIST, and the time of a prediction.

    python benchmarks/play.py results/play.json      two minutes; needs MNIST, Chromium and chromedriver

The networks are trained for one epoch on 5,000 images. The page and PyTorch, with one thread, predict one image at a time;
both times are medians.
"""

import base64
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import faustnet
from browser import chromium
from faustnet.data import DataSet, load_data
from faustnet.play.page import PageModel, render_play
from faustnet.report.tables import print_table
from faustnet.runs.model import Model
from faustnet.system.environment import environment

NETWORKS: dict[str, dict[str, Any]] = {
    "dense 3 × 500": {"widths": [500] * 3},
    "dense 4 × 800": {"widths": [800] * 4},
    "vgg 32–64–128": {"kind": "vgg", "widths": [32, 64, 128], "pools": [1, 2], "head": 64, "embedding": 128},
    "residual 16–32": {"kind": "residual", "widths": [16, 32], "pools": [1, 2], "head": 32, "embedding": 64},
}
TRAINED, COMPARED, AT_ONCE, TIMED = 5000, 1000, 100, 100  # images
COMPARE = """
const all = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0)), count = arguments[1];
const images = Array.from({ length: count }, (_, i) => all.subarray(i * all.length / count, (i + 1) * all.length / count));
return JSON.stringify(images.map((pixels) => {
  const begin = performance.now(), layers = play.model.predict(pixels), milliseconds = performance.now() - begin;
  return { milliseconds, distances: layers.map((layer) => layer.distances), votes: layers.map((layer) => layer.vote) };
}));
"""


def trained(network: dict[str, Any], data: DataSet, folder: Path) -> Model:
    train, test = data.train.take(torch.arange(TRAINED)), data.test.take(torch.arange(COMPARED))
    table = {"network": network, "training": {"epochs": 1}}
    pairs = {name: (part.pixels, part.labels) for name, part in (("data", train), ("test", test))}
    return faustnet.train(table, folder, device="cpu", **pairs).model()


def measure(driver: Any, network: str, data: DataSet, folder: Path) -> dict[str, Any]:
    model = trained(NETWORKS[network], data, folder / network)
    begin = time.perf_counter()
    page = folder / "play.html"
    page.write_text(render_play(PageModel.of(model), data), encoding="utf-8")
    seconds = time.perf_counter() - begin
    driver.get(page.as_uri())
    pixels = data.test.take(torch.arange(COMPARED)).all_pixels
    found: list[dict[str, Any]] = []
    for some in pixels.split(AT_ONCE):  # a script may take 30 seconds
        encoded = base64.b64encode(some.contiguous().numpy().tobytes()).decode()
        found += json.loads(driver.execute_script(COMPARE, encoded, len(some)))
    scores = model.scores(pixels).transpose(0, 1)  # (n, layers, C)
    distances = torch.tensor([image["distances"] for image in found])
    votes = torch.tensor([image["votes"] for image in found])
    return {
        "network": network,
        "megabytes": page.stat().st_size / 1e6,
        "writing_seconds": seconds,
        "page_ms": statistics.median(image["milliseconds"] for image in found),
        "torch_ms": statistics.median(_milliseconds(model, pixels[number : number + 1]) for number in range(TIMED)),
        "largest_difference": (distances + scores).abs().max().item(),
        "different_votes": int((votes != scores.argmax(dim=2)).sum()),
    }


def _milliseconds(model: Model, pixels: torch.Tensor) -> float:
    begin = time.perf_counter()
    model.scores(pixels)
    return 1000 * (time.perf_counter() - begin)


def main(path: Path) -> None:
    torch.set_num_threads(1)
    data = load_data("mnist")
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder) / "profile") as driver:
        lines = [measure(driver, network, data, Path(folder)) for network in NETWORKS]
        about = environment(torch.device("cpu"), seed=0) | {"chromium": driver.capabilities["browserVersion"]}
    path.write_text(json.dumps({"environment": about, "networks": NETWORKS, "lines": lines}, indent=1) + "\n")
    columns = tuple(lines[0])
    cells = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in line.values()] for line in lines]
    print_table(columns, cells, numbers=columns[1:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
