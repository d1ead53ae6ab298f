import threading

import pytest
import torch

from faustnet.errors import FaustnetError
from faustnet.nn import warm_up
from faustnet.nn.architectures import NetworkSettings, embedding_network, rms_network
from faustnet.nn.network import Network

NINE, TWELVE = (9, 1, 1), (3, 2, 2)


def test_the_graph_of_an_embedding_spans_one_layer() -> None:
    network = embedding_network(TWELVE, NetworkSettings((8, 7, 6), 5))
    rows = torch.randn(4, 3, 2, 2)
    embeddings = list(network.embeddings(rows))
    assert [e.shape for e in embeddings] == [(4, 5)] * 3
    embeddings[1].sum().backward()
    reached = [any(p.grad is not None for p in layer.parameters()) for layer in network]
    assert reached == [False, True, False]


def test_forward_is_differentiable_through_every_layer() -> None:
    network = embedding_network(TWELVE, NetworkSettings((8, 7, 6), 5), project=False)
    network(torch.randn(4, 12)).square().sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def inputs(network: Network) -> list[int]:
    return [layer.body.linear.in_features for layer in network]


def test_the_inputs_of_a_layer_are_what_the_layer_before_passes_on() -> None:
    assert inputs(embedding_network(NINE, NetworkSettings((8, 7), 5))) == [9, 8]
    assert inputs(embedding_network(NINE, NetworkSettings((8, 7), 5, passes_on="embedding"))) == [9, 5]
    assert inputs(embedding_network(NINE, NetworkSettings((8, 7), 0, passes_on="embedding"))) == [9, 8]
    assert inputs(rms_network(NINE, NetworkSettings((8, 7), 5))) == [9, 8]


def test_dropout_and_input_dropout_are_separate() -> None:
    assert [layer.dropout for layer in embedding_network(NINE, NetworkSettings((8, 7), 5, dropout=0.3))] == [0.0, 0.3]
    assert [layer.dropout for layer in rms_network(NINE, NetworkSettings((8, 7), 5, dropout=0.3))] == [0.0, 0.3]
    both = NetworkSettings((8, 7), 5, dropout=0.3, input_dropout=0.2)
    assert [[layer.dropout for layer in make(NINE, both)] for make in (embedding_network, rms_network)] == [[0.2, 0.3]] * 2


@pytest.mark.parametrize(
    "settings",
    [
        {"widths": (500, 0)},
        {"widths": ()},
        {"embedding": -1},
        {"dropout": 1.0},
        {"input_dropout": 1.0},
        {"passes_on": "everything"},
        {"length": "x"},
    ],
)
def test_invalid_network_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(FaustnetError):
        NetworkSettings(**settings)


def test_settings_that_a_method_would_ignore_are_refused() -> None:
    NetworkSettings((10,), 8, dropout=0.1).check_used("widths", "embedding", "dropout", method="mine")
    with pytest.raises(FaustnetError, match=r"network\.norm has no effect on mine, got 'batch': leave it out"):
        NetworkSettings((10,), 8, norm="batch").check_used("widths", "embedding", method="mine")


def test_a_gpu_is_started_in_a_thread_which_has_ended_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[torch.device] = []
    monkeypatch.setattr(warm_up, "_start", started.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    before = threading.active_count()
    for kind in ("cpu", "cuda"):
        with warm_up.starting(torch.device(kind)):
            pass
    assert started == [torch.device("cuda")]
    assert threading.active_count() == before


def test_what_is_wrong_with_a_gpu_is_no_error_before_it_is_used() -> None:
    warm_up._start(torch.device("cpu"))
    warm_up._start(torch.device("hpu"))  # PyTorch has no such device here


def test_losses_of_at_most_four_dense_layers_are_computed_together() -> None:
    network = embedding_network(TWELVE, NetworkSettings((8,) * 6, 5))
    assert network.loss_groups == [range(4), range(4, 6)]


def test_grouped_convolutional_layers_are_no_larger_than_the_largest_layer() -> None:
    settings = NetworkSettings((4, 4, 8, 8, 8), 5, kind="vgg", pools=(2, 3, 4), head=4)
    network = embedding_network((3, 16, 16), settings)
    groups = network.loss_groups
    assert [number for group in groups for number in group] == list(range(5))
    assert any(len(group) > 1 for group in groups)
    sizes = [sum(values) for values in network._output_values]
    assert all(sum(sizes[number] for number in group) <= max(sizes) for group in groups)
