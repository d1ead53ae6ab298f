"""Time of predicting many images, and savings of early exit."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from faustnet.bench.steps import Case, Step, microseconds
from faustnet.data import load_data
from faustnet.methods import Faust, Method, build
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.network import CPU_ROWS, GPU_ROWS
from faustnet.nn.precision import matmul_precision
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import set_up
from faustnet.training.evaluation import early_exits, evaluating

PREDICTED = 10_000  # images
NAMES = {"backprop": "backprop_ms", "faust-representative": "faust_ms", "forward-forward": "forward_forward_ms"}


def measure(widths: tuple[int, ...], embedding: int, device: torch.device, seconds: float) -> dict[str, Any]:
    """Return the time in which each method predicts 10,000 scaled images of the shape of CIFAR-10, with random weights."""
    torch.manual_seed(0)
    case = Case()
    rows = torch.randn(PREDICTED, case.inputs, 1, 1, device=device)
    chunks = rows.split(GPU_ROWS if device.type == "cuda" else CPU_ROWS)
    shape, settings = (case.inputs, 1, 1), NetworkSettings(widths, embedding)
    methods = {name: build(name, shape, case.classes, settings, {}).to(device) for name in NAMES}
    for method in methods.values():
        method.mark_ready()

    def predict(name: str) -> None:
        with evaluating(methods[name]):
            for chunk in chunks:
                methods[name].predict(chunk)

    with matmul_precision("tf32"):
        times = microseconds({name: partial(predict, name) for name in NAMES}, device, seconds, group=1)
        line = {NAMES[name]: time / 1000 for name, time in times.items()}
        if device.type == "cuda":
            recorded = {name: _recorded(methods[name], chunks) for name in NAMES}
            times = microseconds(recorded, device, seconds, group=10)
            line |= {f"recorded_{NAMES[name]}": time / 1000 for name, time in times.items()}
    return {"images": PREDICTED, "widths": list(widths), "embedding": embedding, **line}


def _recorded(method: Method, chunks: Sequence[Tensor]) -> Step:
    """Return a prediction of these images as one CUDA graph, which leaves out the time to launch its kernels."""

    def predict() -> list[Tensor]:
        return [method.joined(method.votes(chunk)).argmax(dim=1) for chunk in chunks]

    with evaluating(method):
        predict()  # compiles kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            predicted = predict()

    def replay() -> list[Tensor]:
        graph.replay()
        return predicted

    return replay


def early_exit(device: torch.device, data_dir: Path | None) -> dict[str, Any]:
    """Train FAUST-representative on Fashion-MNIST and measure early exit on the test images.

    The threshold is the one above zero that saves most on 5,000 held-out images without loss of accuracy there.
    """
    recipe = recipe_from(
        {"dataset": "fashion-mnist", "network": {"widths": [800] * 4}, "training": {"epochs": 10, "validation": 5000}}
    )
    data = load_data(recipe.dataset, data_dir)
    model, trainer = set_up(recipe, data, device)
    trainer.run(lambda: None, lambda epoch: None)
    assert isinstance(model.method, Faust)
    held_out = early_exits(model.method, trainer.held_out)
    enough = [line for line in held_out[1:] if line.accuracy >= held_out[-1].accuracy]  # not 0: all images would exit
    chosen = max(enough, key=lambda line: line.saved)
    test = early_exits(model.method, model.source(data.test.to(device)), [line.threshold for line in held_out])
    by_threshold = {line.threshold: line for line in test}
    return {
        "dataset": recipe.dataset,
        "widths": list(recipe.network.widths),
        "embedding": recipe.network.embedding,
        "epochs": recipe.training.epochs,
        "threshold": chosen.threshold,
        "saved": by_threshold[chosen.threshold].saved,
        "accuracy": by_threshold[chosen.threshold].accuracy,
        "accuracy_of_all_layers": test[-1].accuracy,
        "thresholds": [
            {"threshold": t.threshold, "validation_accuracy": v.accuracy, "test_accuracy": t.accuracy, "saved": t.saved}
            for v, t in zip(held_out, test, strict=True)
        ],
    }
