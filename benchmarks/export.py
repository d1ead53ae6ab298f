"""Time of a prediction in PyTorch and in ONNX Runtime with an exported file, from pixels to class numbers.

    python benchmarks/export.py results/export.json      two minutes

Both use one thread and take turns, so that a machine that slows down slows both. Images have the shape of MNIST's. The
weights are not trained, because their values do not change the time.
"""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from faustnet.bench.steps import microseconds
from faustnet.data import Images
from faustnet.export import session_of, to_onnx
from faustnet.report.tables import print_table
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.system.environment import environment
from faustnet.training.evaluation import evaluating

NETWORKS: dict[str, dict[str, Any]] = {
    "dense 3 × 500": {"widths": [500] * 3},
    "dense 4 × 800": {"widths": [800] * 4},
    "vgg 32–64–128": {"kind": "vgg", "widths": [32, 64, 128], "pools": [1, 2], "head": 64, "embedding": 128},
}
METHODS = ("faust-representative", "backprop")
AT_ONCE = (1, 256)
SECONDS = 8.0  # per line
GROUP = {1: 20, 256: 1}  # predictions per measurement
CPU = torch.device("cpu")


def predictors(method: str, network: dict[str, Any]) -> dict[str, Callable[[torch.Tensor], object]]:
    """Both ways to predict images, (n, 1, 28, 28), with the same weights."""
    noise = Images(torch.randint(256, (64, 1, 28, 28), dtype=torch.uint8), torch.arange(64) % 10)
    recipe = recipe_from({"dataset": "mnist", "method": method, "network": network})
    model = Model.fresh(recipe, noise, [str(number) for number in range(10)])
    model.method.start(model.source(noise))
    with evaluating(model.method):
        model.method.make_ready(model.source(noise))
    content, _ = to_onnx(model, test_accuracy=0.0)
    session = session_of(content)

    def torch_predict(pixels: torch.Tensor) -> torch.Tensor:
        return model.method.predict(model.scaling(pixels))

    def onnx_predict(pixels: torch.Tensor) -> list[np.ndarray]:
        return session.run(["prediction"], {"images": pixels.numpy()})

    model.method.eval()
    return {"torch_us": torch_predict, "onnx_us": onnx_predict}


def measure(method: str, network: str) -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    predict = predictors(method, NETWORKS[network])
    for count in AT_ONCE:
        pixels = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8)
        both = {name: partial(function, pixels) for name, function in predict.items()}
        yield {"method": method, "network": network, "images": count, **microseconds(both, CPU, SECONDS, group=GROUP[count])}


def main(path: Path) -> None:
    torch.set_num_threads(1)
    lines = [line for network in NETWORKS for method in METHODS for line in measure(method, network)]
    about = environment(CPU, seed=0) | {"onnxruntime": onnxruntime.__version__}
    path.write_text(json.dumps({"environment": about, "networks": NETWORKS, "lines": lines}, indent=1) + "\n")
    columns = ("images at once", "PyTorch, µs", "ONNX Runtime, µs", "ONNX ÷ PyTorch")
    rows = [
        (line["network"], line["method"], str(line["images"]), f"{line['torch_us']:.0f}", f"{line['onnx_us']:.0f}",
         f"{line['onnx_us'] / line['torch_us']:.2f}")
        for line in lines
    ]  # fmt: skip
    print_table(("network", "method", *columns), rows, numbers=columns)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
