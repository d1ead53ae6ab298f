from typing import Any

import pytest
import torch

from faustnet.nn.bodies import DenseBody, RmsBody
from faustnet.nn.layers import Layer
from faustnet.nn.modules import Linear, unit_rms
from faustnet.nn.network import Network


def dense_layer(embedding: int, **settings: Any) -> Layer:
    """Of 5 inputs and 4 units."""
    return Layer(DenseBody(5, 4), Linear(4, embedding, bias=False) if embedding else None, **settings)


def test_dense_layer_is_linear_relu_layer_norm_and_projection() -> None:
    torch.manual_seed(0)
    layer = dense_layer(3).double()
    rows = torch.randn(6, 5, dtype=torch.float64)
    activation, embedding = layer(rows)
    linear, projection = layer.body.linear, layer.projection.weight.tolist()
    weight, bias = linear.weight.tolist(), linear.bias.tolist()
    for row, found_activation, found_embedding in zip(rows.tolist(), activation.tolist(), embedding.tolist(), strict=True):
        hidden = [max(sum(w * v for w, v in zip(ws, row, strict=True)) + b, 0) for ws, b in zip(weight, bias, strict=True)]
        mean = sum(hidden) / 4
        deviation = (sum((h - mean) ** 2 for h in hidden) / 4 + 1e-5) ** 0.5
        normal = [(h - mean) / deviation for h in hidden]
        assert found_activation == pytest.approx(normal)
        assert found_embedding == pytest.approx([sum(w * v for w, v in zip(ws, normal, strict=True)) for ws in projection])


@pytest.mark.parametrize(
    ("embedding", "passes", "outputs", "size"), [(3, False, 4, 3), (3, True, 3, 3), (0, False, 4, 4), (0, True, 4, 4)]
)
def test_sizes_of_activation_and_embedding(embedding: int, passes: bool, outputs: int, size: int) -> None:
    network = Network([dense_layer(embedding, passes_embedding=passes)], example=torch.zeros(1, 5))
    activation, embedded = network[0](torch.randn(2, 5))
    assert activation.shape == (2, network.outputs) == (2, outputs)
    assert embedded.shape == (2, network[0].embedding_size) == (2, size)
    assert (activation is embedded) == (passes or not embedding)


def test_dropout_applies_to_the_input_while_training_only() -> None:
    torch.manual_seed(0)
    layer = Layer(DenseBody(50, 40), dropout=0.5)
    layer.body.linear.weight.data = torch.eye(40, 50)
    layer.body.linear.bias.data.zero_()
    rows = torch.rand(1, 50) + 1
    dropped, _ = layer(rows)
    floor = dropped.min()
    assert 8 <= int((dropped == floor).sum()) <= 32, "about half of the inputs were set to nothing"
    layer.eval()
    assert torch.equal(layer(rows)[0], layer(rows)[0])


def test_rms_layer_normalises_its_input_and_not_its_output() -> None:
    torch.manual_seed(0)
    layer = Layer(RmsBody(6, 5)).double()
    rows = torch.randn(3, 6, dtype=torch.float64)
    activation, embedding = layer(rows)
    torch.testing.assert_close(layer(rows * 7)[0], activation)
    rms = [(sum(v * v for v in row) / 6) ** 0.5 for row in rows.tolist()]
    expected = torch.relu(layer.body.linear(rows / torch.tensor(rms).double()[:, None]))
    torch.testing.assert_close(embedding, expected, rtol=1e-6, atol=1e-9)


def test_unit_rms_leaves_a_row_of_zeros_unchanged() -> None:
    assert torch.equal(unit_rms(torch.zeros(2, 4)), torch.zeros(2, 4))


def test_embeddings_have_unit_or_learned_length() -> None:
    torch.manual_seed(0)
    rows = torch.randn(6, 5)
    lengths = {}
    for length in ("free", "unit", "learned"):
        layer = dense_layer(3, length=length)
        if length == "learned":
            layer.gain.data.fill_(1.7)
        lengths[length] = layer(rows)[1].norm(dim=1)
    torch.testing.assert_close(lengths["unit"], torch.ones(6))
    torch.testing.assert_close(lengths["learned"], torch.full((6,), 1.7))
    assert lengths["free"].std() > 0.01
