"""FaustClassifier with another method, and with networks that a recipe describes or the user brings."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

import faustnet
from faustnet import FaustClassifier, FaustnetError
from faustnet.estimator import BadInput
from faustnet.nn.architectures import NetworkSettings

PIXELS, DIGITS = load_digits(return_X_y=True)
TRAIN_X, TEST_X, TRAIN_Y, TEST_Y = train_test_split(PIXELS, DIGITS, random_state=0, stratify=DIGITS)


def images(rows: np.ndarray) -> np.ndarray:
    """Three equal channels. (n, 64) → (n, 3, 8, 8)"""
    return np.repeat(rows.reshape(-1, 1, 8, 8), 3, axis=1).astype(np.float32)


def small(**parameters: Any) -> FaustClassifier:
    return FaustClassifier(**{"epochs": 8, "random_state": 0, **parameters})


def dense(example: Tensor) -> list[nn.Module]:
    """Blocks of any modules, for tables."""
    assert example.dim() == 2, "a table as it is"
    return [
        nn.Sequential(nn.Linear(example.shape[1], 64), nn.LayerNorm(64), nn.ReLU()),
        nn.Sequential(nn.Linear(64, 48), nn.LayerNorm(48), nn.ReLU()),
    ]


def with_batch_norm(example: Tensor) -> nn.Sequential:
    channels = example.shape[1]
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    )


def ready_network(example: Tensor) -> faustnet.Network:
    return faustnet.Network(dense(example), embedding=16, example=example, length="unit")


class MeanSquares(faustnet.Method):
    """A method that is in no table: one linear classifier, trained by squared errors."""

    name: ClassVar[str] = "mean-squares"

    def __init__(self, network: faustnet.Network, classes: int, *, size: float = 1.0):
        network.remove_projections()
        super().__init__(network, classes)
        self.size = size
        self.read_out = nn.Linear(network[-1].embedding_size, classes)

    @classmethod
    def make_network(cls, shape: Any, classes: int, settings: NetworkSettings) -> faustnet.Network:
        return faustnet.methods.Faust.make_network(shape, classes, settings)

    @property
    def learners(self) -> list[str]:
        return ["output"]

    voters = learners

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        wanted = self.size * nn.functional.one_hot(y, self.classes)
        yield nn.functional.mse_loss(self.scores(x)[0], wanted.float()).unsqueeze(0)

    def scores(self, x: Tensor) -> Tensor:
        return self.read_out(self.network.embed(x)).unsqueeze(0)


class Blocks:
    """A function with a name that is the same in every process."""

    def __call__(self, example: Tensor) -> list[nn.Module]:
        return dense(example)

    def __repr__(self) -> str:
        return "Blocks()"


def not_kept(estimator: FaustClassifier) -> dict[str, str]:
    return (
        {"check_methods_subset_invariance": "networks of one's own compute in single precision"} if estimator.network else {}
    )


FAST: dict[str, Any] = {"epochs": 4, "learning_rate": 1e-2}  # few epochs are enough for the easy data of the checks


@parametrize_with_checks(
    [FaustClassifier((32,), method=faustnet.FaustPrototype, **FAST), FaustClassifier(network=Blocks(), **FAST)],
    expected_failed_checks=not_kept,
)
def test_other_methods_and_networks_keep_scikit_learns_contract(
    estimator: FaustClassifier, check: Callable[[Any], None]
) -> None:
    check(estimator)


@pytest.mark.parametrize(
    ("parameters", "accuracy"),
    [
        ({"method": faustnet.FaustPrototype, "method_options": {"prototypes": 4, "final_scale": 0.2}}, 0.9),
        ({"method": "faust-centroid"}, 0.9),
        ({"method": "backprop", "label_smoothing": 0.0}, 0.9),
        ({"method": "forward-forward", "widths": (200,)}, 0.8),
        ({"network": dense}, 0.9),
        ({"network": ready_network, "scale": 1.0}, 0.85),
        ({"network": dense, "method": faustnet.Backprop}, 0.9),
        ({"network": dense, "method": "faust-tuplet"}, 0.9),
        ({"method": MeanSquares, "method_options": {"size": 2}}, 0.85),
        ({"method": MeanSquares, "network": dense}, 0.85),
    ],
)
def test_it_learns_tables_with_any_method_and_network(parameters: dict[str, Any], accuracy: float) -> None:
    classifier = clone(small(**parameters)).fit(TRAIN_X, TRAIN_Y)
    assert classifier.score(TEST_X, TEST_Y) > accuracy
    assert classifier.loss_curve_[-1] < classifier.loss_curve_[0]
    belief = classifier.predict_proba(TEST_X)
    np.testing.assert_allclose(belief.sum(axis=1), 1)
    again = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(again.predict_proba(TEST_X), belief)
    embeddings = again.transform(TEST_X)
    assert embeddings.shape == (len(TEST_X), len(again.get_feature_names_out()))
    assert np.array_equal(again.transform(TEST_X), classifier.transform(TEST_X))


@pytest.mark.parametrize(
    "parameters",
    [
        {"network": {"kind": "vgg", "pools": [1], "head": 16}, "widths": (12, 16), "epochs": 4},
        {"network": NetworkSettings((32, 32), 16, kind="transformer", head=32, patch=2), "epochs": 3},
        {"network": with_batch_norm, "embedding": 24, "epochs": 3},
        {"network": with_batch_norm, "method": "faust-prototype", "epochs": 6},
    ],
)
def test_it_learns_images_with_channels_first_or_last(parameters: dict[str, Any]) -> None:
    first, last = images(TRAIN_X), np.moveaxis(images(TRAIN_X), 1, 3)
    classifier = small(learning_rate=1e-2, **parameters).fit(first, TRAIN_Y)
    assert classifier.model_.shape == (3, 8, 8)
    assert classifier.score(images(TEST_X), TEST_Y) > 0.9
    other = clone(classifier).fit(torch.from_numpy(last), torch.from_numpy(TRAIN_Y))
    assert np.array_equal(other.predict_proba(np.moveaxis(images(TEST_X), 1, 3)), classifier.predict_proba(images(TEST_X)))
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.decision_function(images(TEST_X)), classifier.decision_function(images(TEST_X)))


def test_a_dictionary_of_settings_and_the_same_parameters_are_the_same() -> None:
    plain = small(epochs=1, widths=(24, 16), embedding=8, dropout=0.1).fit(TRAIN_X, TRAIN_Y)
    settings = {"widths": [24, 16], "embedding": 8, "dropout": 0.1}
    for network in (settings, NetworkSettings(**{**settings, "widths": (24, 16)})):
        other = small(epochs=1, network=network).fit(TRAIN_X, TRAIN_Y)
        assert np.array_equal(other.predict_proba(TEST_X), plain.predict_proba(TEST_X))
    named = small(epochs=1, method="faust-representative", method_options={"choice": "k-means"}, network=settings)
    assert np.array_equal(named.fit(TRAIN_X, TRAIN_Y).predict_proba(TEST_X), plain.predict_proba(TEST_X))


def test_methods_options_and_networks_are_searched_like_any_parameter() -> None:
    grid = [
        {"method": ["faust-prototype"], "method_options": [{"prototypes": 1}, {"prototypes": 3}]},
        {"method": [faustnet.FaustRepresentative], "network": [None, dense, {"widths": [8]}]},
    ]
    search = GridSearchCV(small(epochs=2), grid, cv=2, n_jobs=None).fit(TRAIN_X[:400], TRAIN_Y[:400])
    assert len(search.cv_results_["params"]) == 5
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    copied = clone(search.best_estimator_)
    assert copied.get_params() == {**search.best_estimator_.get_params()}
    assert copied.set_params(method="backprop").method == "backprop"


@pytest.mark.parametrize("parameters", [{"network": dense}, {"network": dense, "method": "faust-prototype"}])
def test_classes_are_added_to_networks_of_ones_own(parameters: dict[str, Any]) -> None:
    known = TRAIN_Y > 0
    classifier = small(**parameters).fit(TRAIN_X[known], TRAIN_Y[known])
    before = classifier.decision_function(TEST_X)
    classifier.add_class(0, TRAIN_X[~known][:10])
    np.testing.assert_allclose(classifier.decision_function(TEST_X)[:, :9], before, rtol=1e-5, atol=1e-5)
    assert classifier.score(TEST_X[TEST_Y == 0], TEST_Y[TEST_Y == 0]) > 0.6
    again = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(again.predict(TEST_X), classifier.predict(TEST_X))


def test_classes_are_added_only_to_faust_methods() -> None:
    with pytest.raises(FaustnetError, match="Adding a class"):
        small(epochs=1, method="backprop").fit(TRAIN_X, TRAIN_Y).add_class(10, TRAIN_X[:3])


@pytest.mark.parametrize(
    "parameters", [{"network": dense}, {"network": dense, "method": "backprop"}, {"method": "faust-prototype"}]
)
def test_a_warm_start_goes_on_with_any_method_and_network(parameters: dict[str, Any]) -> None:
    classifier = small(warm_start=True, epochs=2, **parameters).fit(TRAIN_X, TRAIN_Y)
    first, loss = classifier.decision_function(TEST_X), classifier.loss_curve_[-1]
    weights = [parameter.clone() for parameter in classifier.model_.method.parameters()]
    classifier.set_params(learning_rate=1e-9).fit(TRAIN_X, TRAIN_Y)
    for before, now in zip(weights, classifier.model_.method.parameters(), strict=True):
        torch.testing.assert_close(now, before, atol=1e-6, rtol=0)
    classifier.set_params(learning_rate=3e-3, epochs=4).fit(TRAIN_X, TRAIN_Y)
    assert classifier.loss_curve_[-1] < loss
    assert classifier.n_iter_ == 8
    assert first.shape == classifier.decision_function(TEST_X).shape


def test_a_warm_start_refuses_another_method_or_network() -> None:
    def wider(example: Tensor) -> list[nn.Module]:
        first = nn.Sequential(nn.Linear(example.shape[1], 99), nn.LayerNorm(99), nn.ReLU())
        return [first, nn.Sequential(nn.Linear(99, 48), nn.LayerNorm(48), nn.ReLU())]

    own = small(epochs=1, warm_start=True, network=dense).fit(TRAIN_X, TRAIN_Y)
    with pytest.raises(BadInput, match="method must be faust-representative to train the fitted network further, got back"):
        clone(own).set_params(network=None).fit(TRAIN_X, TRAIN_Y).set_params(method="backprop").fit(TRAIN_X, TRAIN_Y)
    with pytest.raises(BadInput, match="network must be that of the first fit"):
        own.set_params(network=None).fit(TRAIN_X, TRAIN_Y)
    with pytest.raises(
        BadInput, match=r"network must return the network of .* has the shape \(99, 64\) in place of \(64, 64"
    ):
        own.set_params(network=wider).fit(TRAIN_X, TRAIN_Y)
    vgg = small(epochs=1, warm_start=True, network={"kind": "vgg", "head": 8}, widths=(8,))
    vgg.fit(images(TRAIN_X), TRAIN_Y)
    with pytest.raises(BadInput, match="kind must be vgg to train the fitted network further, got residual"):
        vgg.set_params(network={"kind": "residual", "head": 8}).fit(images(TRAIN_X), TRAIN_Y)


@pytest.mark.parametrize(
    ("parameters", "change"),
    [
        ({"network": dense}, lambda x: x),
        ({"network": with_batch_norm}, images),
        ({"network": {"kind": "vgg", "head": 16, "pools": [1]}, "learning_rate": 1e-2}, images),
    ],
)
def test_samples_in_parts_train_any_network(parameters: dict[str, Any], change: Callable[[np.ndarray], np.ndarray]) -> None:
    widths = {"widths": (12, 16)} if isinstance(parameters["network"], dict) else {}
    classifier = small(**parameters, **widths)
    for _ in range(4):
        for part in np.array_split(np.arange(len(TRAIN_X)), 4):
            classifier.partial_fit(change(TRAIN_X[part]), TRAIN_Y[part], classes=range(10))
    assert classifier.score(change(TEST_X), TEST_Y) > 0.88
    again = pickle.loads(pickle.dumps(classifier)).partial_fit(change(TRAIN_X[:50]), TRAIN_Y[:50])
    classifier.partial_fit(change(TRAIN_X[:50]), TRAIN_Y[:50])
    np.testing.assert_array_equal(again.predict_proba(change(TEST_X)), classifier.predict_proba(change(TEST_X)))


def test_parts_need_representatives() -> None:
    for method in ("backprop", "faust-prototype"):
        with pytest.raises(AttributeError) as error:
            small(method=method).partial_fit(TRAIN_X, TRAIN_Y, classes=range(10))
        assert f"partial_fit needs a method with representatives, such as faust-representative, got {method}" in str(
            error.value.__cause__
        )


def test_a_pickle_of_a_network_of_ones_own_holds_nothing_of_the_training() -> None:
    classifier = small(epochs=1, network=dense, method="faust-tuplet").fit(TRAIN_X, TRAIN_Y)
    weights = sum(tensor.nbytes for tensor in classifier.model_.method.state_dict().values())
    assert len(pickle.dumps(classifier)) < weights + 20_000
    with pytest.raises(FaustnetError, match="A model file cannot describe a method or a network of your own"):
        classifier.model_.to_bytes()


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"method": "faust-prototpe"}, "There is no method 'faust-prototpe': did you mean faust-prototype"),
        ({"method": 3}, "method must be the name or the class of a method, got 3"),
        ({"method": "backprop", "representatives": 3}, "representatives has no effect with method backprop, got 3"),
        ({"method": "forward-forward", "scale": 0.1}, r"scale has no effect with method forward-forward, got 0\.1"),
        ({"method_options": {"scale": 0.1}}, r"must not contain 'scale': set the parameter scale=0\.1 instead"),
        (
            {"method_options": {"prototypes": 2}},
            "must contain options of faust-representative, which are chosen, .*, got 'pro",
        ),
        ({"method_options": 3}, "method_options must be a dictionary such as .*, got 3"),
        ({"method": "faust-prototype", "method_options": {"prototypes": 0}}, "^prototypes must be at least 1, got 0"),
        ({"method": "faust-prototype", "method_options": {"prototypes": 1.5}}, "^prototypes must be a whole number"),
        ({"network": {"kind": "wgg"}}, r"^kind must be dense or vgg or .*, got 'wgg'"),
        ({"network": {"sort": "vgg"}}, r"no recipe key 'sort'"),
        ({"network": {"widths": [8]}, "widths": (9,)}, r"widths is set in network already, got widths=\(9,\)"),
        ({"network": NetworkSettings(), "dropout": 0.5}, "dropout is set in network already"),
        ({"network": 3}, "network must be None, a NetworkSettings, .* and returns new blocks, got int"),
        ({"network": nn.Linear(64, 8)}, "network must be None, .*, got Linear"),
        ({"network": dense, "widths": [5]}, r"widths has no effect with a function as network, got \[5\]"),
        ({"network": ready_network, "embedding": 8}, "embedding has no effect, because network returns a Network"),
        ({"network": dense, "embedding": 8, "method": "backprop"}, "embedding has no effect with this method and network"),
        ({"embedding": 8, "method": "backprop"}, "embedding has no effect with this method and network, got 8"),
        ({"network": lambda x: x}, "network must return a list of blocks or a Network, got Tensor"),
        ({"network": lambda x: [nn.Linear(3, 3)]}, r"Block 1 \(Linear\) does not accept the example"),
        ({"network": lambda x: ready_network(x[:, :9])}, r"must be for inputs of shape \(64,\), got \(9,\)"),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        FaustClassifier(epochs=1, **parameters).fit(TRAIN_X[:200], TRAIN_Y[:200])


def test_tensors_and_frames_are_like_arrays() -> None:
    pandas = pytest.importorskip("pandas")
    plain = small(epochs=1).fit(TRAIN_X, TRAIN_Y)
    tensors = small(epochs=1).fit(torch.from_numpy(TRAIN_X).requires_grad_(), torch.from_numpy(TRAIN_Y))
    assert np.array_equal(tensors.predict_proba(torch.from_numpy(TEST_X)), plain.predict_proba(TEST_X))
    frame = small(epochs=1, network=dense).fit(pandas.DataFrame(TRAIN_X), pandas.Series(TRAIN_Y))
    assert np.array_equal(frame.predict(pandas.DataFrame(TEST_X)), frame.predict(TEST_X))
    half = small(epochs=1).fit(torch.from_numpy(TRAIN_X).bfloat16(), torch.from_numpy(TRAIN_Y))
    np.testing.assert_array_equal(half.predict(TEST_X), plain.predict(TEST_X))


@pytest.mark.parametrize(("shape", "channels"), [((8, 8, 1), 1), ((1, 8, 8), 1), ((3, 8, 3), 3), ((4, 16, 1), 1)])
def test_which_images_are_channels_last(shape: tuple[int, ...], channels: int) -> None:
    x = np.resize(TRAIN_X, (60, *shape)).astype(np.uint8)
    classifier = small(epochs=1).fit(x, TRAIN_Y[:60] % 2)
    assert classifier.model_.shape[0] == channels
    assert classifier.n_features_in_ == np.prod(shape)
    assert classifier.predict(x).shape == (60,)


def test_blocks_that_were_trained_before_are_refused() -> None:
    """Otherwise the second fold of a cross-validation would begin with what the first one has learned."""
    fixed = nn.Sequential(nn.Linear(64, 64).requires_grad_(False), nn.ReLU())
    blocks = [nn.Sequential(fixed, nn.Linear(64, 8))]
    FaustClassifier(network=lambda example: blocks, epochs=1).fit(TRAIN_X[:200], TRAIN_Y[:200])
    with pytest.raises(ValueError, match="network must return new blocks in each call"):
        FaustClassifier(network=lambda example: nn.Sequential(*blocks), epochs=1).fit(TRAIN_X[:200], TRAIN_Y[:200])
    new = lambda example: [nn.Sequential(fixed, nn.Linear(64, 8))]  # noqa: E731
    FaustClassifier(network=new, epochs=1).fit(TRAIN_X[:200], TRAIN_Y[:200])
