"""Conversion of a trained model to an ONNX graph with `torch.onnx.export`, which needs to know nothing about methods and
layers."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

import onnx_ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from faustnet.data import Scaling
from faustnet.errors import FaustnetError
from faustnet.nn.counting import count_multiplications
from faustnet.runs.model import Model
from faustnet.training.evaluation import evaluating

OPSET = 18
IR_VERSION = 8  # published with opset 18: every runtime with these operators reads it
OUTPUTS = ("votes", "joined", "prediction")
BATCH = ({0: Dim("n")},)  # the first dimension of `images` has any size


class Predictor(nn.Module):
    """Prediction from pixels or token ids to classes, as one module.

    (n, channels, height, width), uint8 or float32, or (n, tokens), int64
    → votes (n, voters, C), joined (n, C), prediction (n,)
    """

    mean: Tensor | None
    deviation: Tensor | None

    def __init__(self, model: Model):
        super().__init__()
        self.method = model.method
        self.register_buffer("mean", model.scaling.mean if model.scaling else None)
        self.register_buffer("deviation", model.scaling.deviation if model.scaling else None)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.mean is not None and self.deviation is not None:
            images = Scaling(self.mean, self.deviation)(images)
        votes = self.method.votes(images)
        joined = self.method.joined(votes)
        return votes.transpose(0, 1).float(), joined.float(), joined.argmax(dim=1)


def to_graph(model: Model) -> tuple[onnx_ir.Model, int]:
    """Convert a model on the CPU. Return the ONNX model and the number of multiplications for one image."""
    predictor, kind = Predictor(model), input_type(model)
    with evaluating(model.method):
        # This also shows errors of the method itself, before it is traced.
        _, multiplications = count_multiplications(predictor, torch.ones(1, *model.shape, dtype=kind))
        with _quiet():
            program = _traced(predictor, torch.ones(2, *model.shape, dtype=kind))
            graph = _converted(program, model)
    _clear_metadata(graph)
    graph.ir_version = IR_VERSION
    return graph, multiplications


def _traced(predictor: Predictor, images: Tensor) -> ExportedProgram:
    """Trace a prediction with any number of images.

    The second attempt also compiles Python's bytecode, which is slower but can follow `len(x)`.
    """
    error: Exception | None = None
    for strict in (False, True):
        try:
            return torch.export.export(predictor, (images,), dynamic_shapes=BATCH, strict=strict)
        except Exception as raised:  # torch.export has no base class for its errors
            error = raised
    raise FaustnetError(
        f"{predictor.method.name} cannot be exported: torch.export cannot trace its scores ({_reason(error)}). "
        "Write them as tensor operations, without conditions on tensor values and for any batch size."
    ) from error


def input_name(model: Model) -> str:
    return "tokens" if model.tokeniser else "images"


def input_type(model: Model) -> torch.dtype:
    return torch.int64 if model.tokeniser else torch.uint8 if model.of_bytes else torch.float32


def _converted(program: ExportedProgram, model: Model) -> onnx_ir.Model:
    try:
        converted = torch.onnx.export(
            program,
            input_names=[input_name(model)],
            output_names=OUTPUTS,
            dynamic_shapes=BATCH,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        raise FaustnetError(
            f"{model.method.name} cannot be exported: ONNX has no operator for a part of its scores ({_reason(error)}). "
            "Write that part with other operations."
        ) from error
    assert converted is not None
    return converted.model


def _clear_metadata(graph: onnx_ir.Model) -> None:
    """Remove what the exporter notes on nodes and values: among others stack traces, with the paths of source files."""
    ClearMetadataAndDocStringPass()(graph)
    inside = (value for node in graph.graph.all_nodes() for value in node.outputs)
    for value in (*graph.graph.inputs, *graph.graph.initializers.values(), *inside):
        value.metadata_props.clear()


def _reason(error: BaseException | None) -> str:
    """Return the first line of the original error behind `error`."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporter reports: missing optional packages, deprecated functions that PyTorch itself calls, and the
    whole graph before an error that is raised anyway."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_cache`", UserWarning)
            yield
    finally:
        logging.disable(disabled)
