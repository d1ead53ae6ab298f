"""A graph of ONNX operations, written node by node."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18  # the first in which all reductions take their axes alike
IR_VERSION = 8  # that came with it, so that every runtime that knows the operations can read the file
FAR = 2**31  # past the end of any axis

Value = str  # the name of what an operation gives
Shape = Sequence[int | str]  # a word is a size that is not known yet


class Graph:
    """Operations in the order in which they are computed, and the numbers that they need."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.multiplications = 0  # of the matrix products and convolutions, for one row of each
        self.room = "image"  # what names begin with from now on

    def __call__(self, operation: str, *inputs: Value | np.ndarray, **attributes: Any) -> Value:
        """One operation on values that came before and on constants; the name of what comes out."""
        names = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        result = f"{self.room}.{operation}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, names, [result], name=result, **attributes))
        return result

    def linear(self, rows: Value, weight: np.ndarray, bias: np.ndarray | None = None, times: float = 1.0) -> Value:
        """times · rows · weightᵀ + bias. (R, inputs), (outputs, inputs), (outputs,) → (R, outputs)"""
        self.multiplications += weight.size
        return self("Gemm", rows, weight, *([] if bias is None else [bias]), transB=1, alpha=times)

    def convolution(
        self, pictures: Value, weight: np.ndarray, bias: np.ndarray | None, side: tuple[int, int], groups: int = 1
    ) -> Value:
        """3×3, of pictures of this size. (R, inputs, h, w), (outputs, inputs / groups, 3, 3) → (R, outputs, h, w)"""
        self.multiplications += weight.size * math.prod(side)
        biases = [] if bias is None else [bias]
        return self("Conv", pictures, weight, *biases, kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=groups)

    def halved(self, pictures: Value) -> Value:
        """By the largest value of every four; what is over at the edges goes. (R, c, h, w) → (R, c, h // 2, w // 2)"""
        return self("MaxPool", pictures, kernel_shape=[2, 2], strides=[2, 2])

    def mirrored(self, value: Value, axis: int) -> Value:
        return self("Slice", value, integers(-1), integers(-FAR), integers(axis), integers(-1))

    def as_numbers(self, value: Value) -> Value:
        """Bytes as float32."""
        return self("Cast", value, to=TensorProto.FLOAT)

    def reduced(self, how: str, value: Value, *axes: int, keep: bool = False) -> Value:
        """ReduceSum, ReduceMean, … over some axes, which go unless they are kept."""
        return self(how, value, integers(*axes), keepdims=int(keep))

    def squared(self, rows: Value) -> Value:
        """The sum of squares of each row, by two operations: ONNX Runtime's one for this adds up less exactly.
        (R, d) → (R, 1)"""
        return self.reduced("ReduceSum", self("Mul", rows, rows), 1, keep=True)

    def joined(self, values: Sequence[Value], axis: int) -> Value:
        return values[0] if len(values) == 1 else self("Concat", *values, axis=axis)

    def takes(self, name: str, shape: Shape, *, of_bytes: bool) -> Value:
        """What goes in, bytes or float32."""
        kind = TensorProto.UINT8 if of_bytes else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def gives(self, value: Value, name: str, shape: Shape, *, whole_numbers: bool = False) -> None:
        """Something that comes out, float32 or int64."""
        kind = TensorProto.INT64 if whole_numbers else TensorProto.FLOAT
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))
        self.nodes.append(helper.make_node("Identity", [value], [name], name=name))

    def to_model(self, producer: tuple[str, str], metadata: Mapping[str, str]) -> onnx.ModelProto:
        """All of it, checked: the name and the version of who made it, and what there is to know."""
        graph = helper.make_graph(self.nodes, producer[0], self.inputs, self.outputs, self.constants)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
        model.producer_name, model.producer_version = producer
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        return model

    def _constant(self, values: np.ndarray) -> Value:
        name = f"{self.room}.constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name


def integers(*values: int) -> np.ndarray:
    """As shapes, axes and positions are given."""
    return np.array(values, dtype=np.int64)


def number(value: float) -> np.ndarray:
    return np.array(value, dtype=np.float32)
