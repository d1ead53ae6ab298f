"""Layers and methods as ONNX operations: what `Layer.transform`, `Method.votes` and `Method.joined` compute, once they are
trained. What is constant by then is computed here, and batch norms become part of the weights before them."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from faustnet.errors import FaustnetError
from faustnet.export.graph import Graph, Value, integers, number
from faustnet.methods import Faust, Method
from faustnet.methods.backprop import Backprop
from faustnet.methods.cwc import CwC
from faustnet.methods.ffcm import FFCM
from faustnet.methods.forward_forward import ForwardForward
from faustnet.nn.conv import ConvLayer, ConvNorm, GoodnessConvLayer, Head
from faustnet.nn.layers import DenseLayer, EmbeddingLayer, Layer, RmsLayer
from faustnet.nn.modules import EPSILON, BatchNorm
from faustnet.nn.network import Network
from faustnet.nn.readout import ReadOut
from faustnet.runs.model import Model

SHORTEST = 1e-12  # that an embedding is divided by, as in torch's normalize
TINY = float(torch.finfo(torch.float32).tiny)


def write_model(graph: Graph, model: Model) -> None:
    """From `images`, (n, c, h, w), bytes or float32, to `votes` (n, voters, C), each voter's scores; `joined` (n, C), what
    they come to together; and `prediction` (n,), the number of the class that has the most."""
    method = model.method
    prediction, voters, classes = method.prediction, len(method.voters), method.classes
    images = graph.takes("images", ["n", *model.shape], of_bytes=model.of_bytes)
    if prediction.mirror:
        images = graph.joined([images, graph.mirrored(images, axis=3)], axis=0)
    if model.of_bytes:
        images = graph.as_numbers(images)
    scaled = graph("Div", graph("Sub", images, array(model.scaling.mean)), array(model.scaling.deviation))
    flat = _votes(graph, method, scaled)
    graph.room = "votes"
    if prediction.mirror:
        graph.multiplications *= 2
        flat = graph.reduced("ReduceMean", graph("Reshape", flat, integers(2, -1, voters * classes)), 0)
    votes = counted = graph("Reshape", flat, integers(0, voters, classes))
    if prediction.weights:
        counted = graph("Mul", votes, np.array(method.weights, dtype=np.float32).reshape(1, voters, 1))
    joined = graph.reduced("ReduceSum", counted, 1) if voters > 1 or prediction.weights else flat
    graph.gives(votes, "votes", ["n", voters, classes])
    graph.gives(joined, "joined", ["n", classes])
    graph.gives(graph("ArgMax", joined, axis=1, keepdims=0), "prediction", ["n"], whole_numbers=True)


def _votes(graph: Graph, method: Method, images: Value) -> Value:
    """Every voter's scores side by side. (n, c, h, w) → (n, voters · C)"""
    network = method.network
    rows = images if isinstance(network[0], ConvLayer | GoodnessConvLayer) else graph("Flatten", images, axis=1)
    match method:
        case Faust():
            layers = zip(_walk(graph, network, rows, embed=True), method.references, strict=True)
            squares = [_squared_distances(graph, embedding, references, method.scale) for embedding, references in layers]
            graph.room = "votes"
            return graph("Neg", graph("Sqrt", graph("Relu", graph.joined(squares, axis=1))))
        case CwC():
            activities = zip(_walk(graph, network, rows), network, strict=True)
            return graph.joined([_goodness(graph, made, layer, method.classes) for made, layer in activities], axis=1)
        case Backprop():
            *_, last = _walk(graph, network, rows)
            embedding = _embedding(graph, network[-1], last)
            return graph.linear(embedding, array(method.read_out.weight), array(method.read_out.bias))
        case FFCM():
            *_, last = _walk(graph, network, rows)
            return _read(graph, method.read_out, _as_rows(graph, last, network[-1]))
        case ForwardForward(read_out=ReadOut() as read_out):
            seen = list(_walk(graph, network, _unlabelled(graph, method, rows)))[method.first_read :]
            return _read(graph, read_out, graph.joined([_unit_rms(graph, made) for made in seen], axis=1))
    raise _unable(method)


def _unable(method: Method) -> FaustnetError:
    if method.forward_passes == 1:
        return FaustnetError(f"A model of {method.name} cannot be exported: train another method.")
    one_pass = " with options.inference=one-pass" if isinstance(method, ForwardForward) else " another method"
    return FaustnetError(
        f"{method.name} tries every label in a pass of its own, and only what predicts in one pass can be exported: "
        f"train{one_pass}."
    )


def _walk(graph: Graph, network: Network, value: Value, *, embed: bool = False) -> Iterator[Value]:
    """What each layer passes on, or its embedding: rows, or between convolutional layers pictures, (R, c, h, w)."""
    for place, layer in enumerate(network, start=1):
        graph.room = f"layer_{place}"
        made = _made(graph, layer, value)
        passes_embedding = isinstance(layer, DenseLayer) and layer.passes_embedding
        embedding = _embedding(graph, layer, made) if embed or passes_embedding else made
        value = embedding if passes_embedding else made
        yield embedding


def _made(graph: Graph, layer: Layer, value: Value) -> Value:
    """A layer's activation."""
    match layer:
        case DenseLayer():
            hidden = graph("Relu", graph.linear(value, *_folded(layer.linear.weight, layer.linear.bias, layer.norm)))
            if layer.norm is not None:
                return hidden
            gain = np.ones(layer.linear.out_features, dtype=np.float32)
            return graph("LayerNormalization", hidden, gain, axis=-1, epsilon=EPSILON)
        case RmsLayer():
            rows = _unit_rms(graph, value)
            return graph("Relu", graph.linear(rows, array(layer.linear.weight), array(layer.linear.bias)))
        case ConvLayer():
            pictures = graph("Relu", _normalised(graph, layer.entrance, value, layer.shape[1:]))
            if layer.inner is None or layer.outer is None:
                return pictures
            side = layer.output_shape[1:]
            change = graph("Relu", _normalised(graph, layer.inner, pictures, side))
            return graph("Relu", graph("Add", _normalised(graph, layer.outer, change, side), pictures))
        case GoodnessConvLayer(norm_first=False):
            convolution = layer.convolution
            pictures = graph.convolution(value, array(convolution.weight), None, layer.shape[1:], convolution.groups)
            return _batch_norm(graph, layer.norm, graph("Relu", graph.halved(pictures) if layer.pool else pictures))
    raise AssertionError(f"no operations for {type(layer).__name__}")


def _normalised(graph: Graph, block: ConvNorm, pictures: Value, side: tuple[int, int]) -> Value:
    if not block.pool:
        return graph.convolution(pictures, *_folded(block.convolution.weight, None, block.norm), side)
    # A negative gain would make the smallest value of a square the largest, so this norm stays where it is.
    made = graph.halved(graph.convolution(pictures, array(block.convolution.weight), None, side))
    return _batch_norm(graph, block.norm, made)


def _batch_norm(graph: Graph, norm: BatchNorm, pictures: Value) -> Value:
    numbers = [array(part) for part in (norm.gain, norm.offset, norm.mean, norm.variance)]
    return graph("BatchNormalization", pictures, *numbers, epsilon=EPSILON)


def _folded(weight: Tensor, bias: Tensor | None, norm: BatchNorm | None) -> tuple[np.ndarray, np.ndarray]:
    """The weight and the bias of a linear map or a convolution with the batch norm after it as a part of them."""
    before = weight.new_zeros(len(weight)) if bias is None else bias
    if norm is None:
        return array(weight), array(before)
    gain = norm.gain.double() / (norm.variance.double() + EPSILON).sqrt()
    folded = weight.double() * gain.view(-1, *[1] * (weight.dim() - 1))
    return array(folded), array((before.double() - norm.mean.double()) * gain + norm.offset.double())


def _embedding(graph: Graph, layer: Layer, made: Value) -> Value:
    """What a layer's loss looks at, from its activation. → (R, e)"""
    if not isinstance(layer, EmbeddingLayer):
        return made
    if isinstance(layer, ConvLayer):
        made = _as_rows(graph, made, layer) if layer.head is None else _head(graph, layer.head, made, layer.output_shape[1:])
    if layer.projection is not None:
        made = graph.linear(made, array(layer.projection.weight))
    if layer.unit:
        made = graph("Div", made, graph("Max", graph("Sqrt", graph.squared(made)), number(SHORTEST)))
    return made if layer.gain is None else graph("Mul", made, array(layer.gain))


def _head(graph: Graph, head: Head, pictures: Value, side: tuple[int, int]) -> Value:
    if head.first is not None and head.second is not None:
        pictures = _shrunk(graph, pictures, side, head.side)
        pictures = graph("Relu", _normalised(graph, head.first, pictures, head.side))
        pictures = graph("Relu", _normalised(graph, head.second, pictures, head.side))
    return graph("Flatten", graph("GlobalAveragePool", pictures), axis=1)


def _shrunk(graph: Graph, pictures: Value, side: tuple[int, int], to: tuple[int, int]) -> Value:
    """Means over squares, which overlap where the sides do not divide. (R, c, h, w) → (R, c, *to)"""
    if side == to:
        return pictures
    if side[0] % to[0] == 0 and side[1] % to[1] == 0:
        square = [side[0] // to[0], side[1] // to[1]]
        return graph("AveragePool", pictures, kernel_shape=square, strides=square)
    return graph("MatMul", _means(side[0], to[0]), graph("MatMul", pictures, _means(side[1], to[1]).T))


def _means(size: int, to: int) -> np.ndarray:
    """The matrix that takes the means over the windows of torch's adaptive pooling along one side. (to, size)"""
    means = np.zeros((to, size), dtype=np.float32)
    for place in range(to):
        first, end = place * size // to, -(-(place + 1) * size // to)
        means[place, first:end] = 1 / (end - first)
    return means


def _as_rows(graph: Graph, made: Value, layer: Layer) -> Value:
    """Pictures pixel after pixel, as torch's layers pass them on. (R, c, h, w) → (R, h · w · c)"""
    if not isinstance(layer, ConvLayer):
        return made
    return graph("Flatten", graph("Transpose", made, perm=[0, 2, 3, 1]), axis=1)


def _read(graph: Graph, read_out: ReadOut, rows: Value) -> Value:
    return graph.linear(rows, array(read_out.weight), array(read_out.bias))


def _squared_distances(graph: Graph, embedding: Value, references: Tensor, scale: float) -> Value:
    """The soft minimum of the squared distances to each class's references. (R, e), (C, K, e) → (R, C)"""
    classes, count, size = references.shape
    rows = references.reshape(classes * count, size)
    less_own = graph.linear(embedding, array(rows), array(rows.square().sum(dim=1)), times=-2.0)
    distances = graph("Add", less_own, graph.squared(embedding))
    if count == 1:
        return distances
    distances = graph("Reshape", distances, integers(0, classes, count))
    least = graph.reduced("ReduceMin", distances, 2, keep=True)
    shares = graph("Exp", graph("Mul", graph("Sub", least, distances), number(scale)))
    log_mean = graph("Log", graph.reduced("ReduceMean", shares, 2, keep=True))
    return graph("Flatten", graph("Sub", least, graph("Div", log_mean, number(scale))), axis=1)


def _goodness(graph: Graph, activity: Value, layer: Layer, classes: int) -> Value:
    """The mean of squares of each class's share of the channels. (R, channels, …) → (R, C)"""
    squares = graph("Mul", activity, activity)
    if isinstance(layer, GoodnessConvLayer):
        squares = graph("Flatten", graph("GlobalAveragePool", squares), axis=1)
    return graph.reduced("ReduceMean", graph("Reshape", squares, integers(0, classes, -1)), 2)


def _unlabelled(graph: Graph, method: ForwardForward, rows: Value) -> Value:
    """Images with a little of every label in place of their first values. (R, d) → (R, d)"""
    device, inputs = next(method.parameters()).device, method.network[0].inputs
    label = method.unlabelled(torch.zeros(1, inputs, device=device))
    kept = method.unlabelled(torch.ones(1, inputs, device=device)) - label
    return graph("Add", graph("Mul", rows, array(kept)), array(label))


def _unit_rms(graph: Graph, rows: Value) -> Value:
    """(R, d) → (R, d)"""
    square = graph.reduced("ReduceMean", graph("Mul", rows, rows), 1, keep=True)
    return graph("Div", rows, graph("Sqrt", graph("Add", square, number(TINY))))


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().float().numpy()
