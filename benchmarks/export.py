"""What a prediction takes in PyTorch and in ONNX Runtime from an exported file: bytes in, class numbers out.

    python benchmarks/export.py results/export.json      two minutes

Both work with one thread and take turns, so that a machine that slows down slows both. Images have MNIST's shape. What the
weights are makes no difference to the time, so they are not trained.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from faustnet.bench.steps import microseconds
from faustnet.data import Images
from faustnet.export import session_of, to_onnx
from faustnet.report.tables import print_table
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.system.environment import environment

NETWORKS: dict[str, dict[str, Any]] = {
    "dense 3 × 500": {"widths": [500] * 3},
    "dense 4 × 800": {"widths": [800] * 4},
    "vgg 32–64–128": {"kind": "vgg", "widths": [32, 64, 128], "pools": [1, 2], "head": 64, "embedding": 128},
}
METHODS = ("faust-representative", "backprop")
AT_ONCE = (1, 256)
SECONDS = 8.0  # for each line
GROUP = {1: 20, 256: 1}  # predictions between two looks at the clock
CPU = torch.device("cpu")


def predictors(method: str, network: dict[str, Any], pixels: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Both ways to predict the same images with the same weights."""
    noise = torch.randint(256, (64, 1, 28, 28), dtype=torch.uint8)
    recipe = recipe_from({"dataset": "mnist", "method": method, "network": network})
    model = Model.fresh(recipe, Images(noise, torch.arange(64) % 10), [str(number) for number in range(10)])
    content, _ = to_onnx(model, test_accuracy=0.0)
    fed = {"images": pixels.numpy()}

    def torch_predict() -> torch.Tensor:
        return model.method.predict(model.scaling(pixels))

    model.method.eval()
    return {"torch_us": torch_predict, "onnx_us": partial(session_of(content).run, ["prediction"], fed)}


def measure(method: str, network: str, count: int) -> dict[str, Any]:
    torch.manual_seed(0)
    pixels = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8)
    times = microseconds(predictors(method, NETWORKS[network], pixels), CPU, SECONDS, group=GROUP[count])
    return {"method": method, "network": network, "images": count, **times}


def main(path: Path) -> None:
    torch.set_num_threads(1)
    lines = [measure(method, network, count) for network in NETWORKS for method in METHODS for count in AT_ONCE]
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
