"""FaustClassifier: scikit-learn's own checks, and what they do not know of."""

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import estimator as benchmark
from faustnet import FaustClassifier, FaustnetError
from faustnet.data import DataSet
from faustnet.estimator import BadInput
from faustnet.runs.model import Model

ROOT = Path(__file__).parents[1]
IRIS = load_iris()


@pytest.fixture(scope="module")
def fitted() -> FaustClassifier:
    """To the three kinds of iris, by name."""
    return FaustClassifier(random_state=0).fit(IRIS.data, IRIS.target_names[IRIS.target])


@pytest.fixture(scope="module")
def two_classes() -> FaustClassifier:
    """To the two kinds of iris that are hard to tell apart."""
    return FaustClassifier(random_state=0).fit(IRIS.data[50:], IRIS.target[50:] == 2)


@parametrize_with_checks([FaustClassifier(epochs=4, learning_rate=1e-2)])
def test_it_keeps_scikit_learns_contract(estimator: FaustClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_it_is_good_without_any_settings() -> None:
    x, y = load_wine(return_X_y=True)
    assert cross_val_score(FaustClassifier(random_state=0), x, y).mean() > 0.95


def test_units_and_offsets_of_columns_do_not_matter() -> None:
    """Not even where single precision would see a constant."""
    units, offsets = np.array([1e-9, 1e6, 1.0, 3.0]), np.array([0.0, 0.0, 1e9, -4.0])
    plain = FaustClassifier(random_state=0).fit(IRIS.data, IRIS.target)
    shifted = FaustClassifier(random_state=0).fit(IRIS.data * units + offsets, IRIS.target)
    np.testing.assert_allclose(plain.predict_proba(IRIS.data), shifted.predict_proba(IRIS.data * units + offsets), atol=1e-3)


def test_belief_is_the_layers_scores_at_a_sharpness_that_training_gave(fitted: FaustClassifier) -> None:
    """By plain loops, from the embeddings: distances to references, and the mean of a + b of the two nearest classes."""
    embeddings = np.split(fitted.transform(IRIS.data), 2, axis=1)
    scale = fitted.scale
    distances = np.zeros((2, len(IRIS.data), 3))
    for layer, references in enumerate(fitted.model_.method.references):
        for sample, embedding in enumerate(embeddings[layer]):
            for number, own in enumerate(references.numpy()):
                terms = [math.exp(-scale * ((embedding - reference) ** 2).sum()) for reference in own]
                distances[layer, sample, number] = math.sqrt(max(0, -math.log(np.mean(terms)) / scale))
    nearest = np.sort(distances, axis=2)[:, :, :2].sum(axis=2).mean()
    believed = -distances.mean(axis=0) * scale * nearest
    np.testing.assert_allclose(fitted.decision_function(IRIS.data), believed, rtol=1e-4, atol=1e-4)
    shares = np.exp(believed) / np.exp(believed).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.predict_proba(IRIS.data), shares, atol=1e-4)
    assert (fitted.predict(IRIS.data) == fitted.classes_[believed.argmax(axis=1)]).all()


def test_probabilities_are_of_use(two_classes: FaustClassifier) -> None:
    """On average as sure as it is right, within a tenth."""
    sure = two_classes.predict_proba(IRIS.data[50:]).max(axis=1).mean()
    assert abs(sure - two_classes.score(IRIS.data[50:], IRIS.target[50:] == 2)) < 0.1


def test_for_two_classes_there_is_one_number(two_classes: FaustClassifier) -> None:
    x = IRIS.data[50:]
    odds = two_classes.decision_function(x)
    assert odds.shape == (100,)
    np.testing.assert_allclose(two_classes.predict_proba(x)[:, 1], 1 / (1 + np.exp(-odds)), rtol=1e-9)
    assert (two_classes.predict(x) == (odds > 0)).all()
    assert two_classes.predict(x).dtype == bool


def test_layers_give_their_embeddings_side_by_side(fitted: FaustClassifier) -> None:
    both = fitted.transform(IRIS.data)
    assert both.shape == (150, 64)
    second = pickle.loads(pickle.dumps(fitted)).set_params(transform_layers=2)
    assert np.array_equal(second.transform(IRIS.data), both[:, 32:])
    assert list(second.get_feature_names_out())[-1] == "faustclassifier31"
    assert np.array_equal(second.set_params(transform_layers=(2, 1)).transform(IRIS.data)[:, 32:], both[:, :32])
    for wrong in (3, [0], []):
        with pytest.raises(BadInput, match="transform_layers must be one or more numbers from 1 to 2"):
            second.set_params(transform_layers=wrong).transform(IRIS.data)


def test_a_pickle_holds_the_weights_and_nothing_of_the_training(fitted: FaustClassifier) -> None:
    whole = pickle.dumps(fitted)
    again = pickle.loads(whole)
    assert np.array_equal(again.predict_proba(IRIS.data), fitted.predict_proba(IRIS.data))
    assert list(again.classes_) == ["setosa", "versicolor", "virginica"]
    weights = sum(tensor.nbytes for tensor in fitted.model_.method.state_dict().values())
    assert len(whole) < 1.2 * weights + 20_000
    assert not hasattr(clone(fitted), "model_")


def test_its_model_can_be_saved_like_any(fitted: FaustClassifier, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(fitted.model_.to_bytes())
    model = Model.load(tmp_path / "model.safetensors")
    predicted = model.predict(fitted.scaler_.transform(IRIS.data)[:, :, None, None])
    assert [one.class_name for one in predicted] == list(fitted.predict(IRIS.data))


def test_the_random_state_decides_alone() -> None:
    def weights(random_state: object) -> np.ndarray:
        return FaustClassifier((20,), epochs=2, random_state=random_state).fit(IRIS.data, IRIS.target).transform(IRIS.data)

    state = torch.get_rng_state()
    first = weights(1)
    assert torch.equal(state, torch.get_rng_state()), "nobody else's random numbers are used up"
    torch.manual_seed(5)
    assert np.array_equal(first, weights(1))
    assert not np.array_equal(first, weights(2))
    assert np.array_equal(weights(np.random.RandomState(3)), weights(np.random.RandomState(3)))


def test_it_prints_nothing_unless_it_is_told_to(capfd: pytest.CaptureFixture[str]) -> None:
    classifier = FaustClassifier((20,), epochs=3, random_state=0).fit(IRIS.data, IRIS.target)
    assert capfd.readouterr() == ("", "")
    assert (classifier.n_iter_, len(classifier.loss_curve_)) == (3, 3)
    assert classifier.loss_curve_[2] < classifier.loss_curve_[0]
    classifier.set_params(verbose=True).fit(IRIS.data, IRIS.target)
    last = f"Epoch 3, loss {classifier.loss_curve_[2]:.4f}"
    assert capfd.readouterr().out.splitlines()[2:] == [last]


def test_it_works_inside_scikit_learns_tools() -> None:
    x, y = IRIS.data, IRIS.target_names[IRIS.target]
    small = FaustClassifier((20,), embedding=8, epochs=8, random_state=0)
    assert cross_val_score(make_pipeline(PCA(3), small), x, y, cv=3).mean() > 0.85
    assert cross_val_score(make_pipeline(small, LogisticRegression()), x, y, cv=3).mean() > 0.85
    grid = {"epochs": np.arange(1, 9, 7), "learning_rate": np.logspace(-6, -2, 2)}
    search = GridSearchCV(small, grid, cv=3).fit(x, y)
    assert search.best_params_ == {"epochs": 8, "learning_rate": 1e-2}


def test_images_keep_their_shape(digits: DataSet) -> None:
    pixels, labels = digits.train.pixels.numpy()[:400], digits.train.labels.numpy()[:400]
    test, truth = digits.test.pixels.numpy(), digits.test.labels.numpy()
    small = FaustClassifier((64,), epochs=10, random_state=0)
    with_channel = clone(small).fit(pixels, labels)
    assert pixels.shape[1:] == (1, 8, 8) == with_channel.model_.shape
    assert with_channel.model_.of_bytes
    assert with_channel.n_features_in_ == 64
    assert with_channel.score(test, truth) > 0.85
    without = clone(small).fit(pixels[:, 0], labels)
    assert np.array_equal(without.predict_proba(test[:, 0]), with_channel.predict_proba(test))
    listed = clone(small).fit(pixels[:, 0].tolist(), labels.tolist())
    np.testing.assert_allclose(listed.predict_proba(test[:, 0].tolist()), without.predict_proba(test[:, 0]), atol=1e-4)
    assert cross_val_score(small, pixels, labels, cv=2).mean() > 0.8
    with pytest.raises(BadInput, match="the form of the training data, images of 1×8×8, got 2"):
        without.predict(test.reshape(len(test), -1))
    with pytest.raises(FaustnetError, match="must be images of 1×8×8 for this model, got images of 1×8×7"):
        without.predict(test[:, 0, :, 1:])
    with pytest.raises(FaustnetError, match="uint8 from 0 to 255"):
        without.predict(test[:, 0] / 255)


def test_frames_have_names_and_labels_any_type() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(IRIS.data, columns=IRIS.feature_names)
    kinds = pandas.Series(IRIS.target_names[IRIS.target])
    small = FaustClassifier((20,), epochs=5, random_state=0)
    classifier = clone(small).fit(frame, kinds)
    assert list(classifier.feature_names_in_) == IRIS.feature_names
    assert set(classifier.predict(frame)) <= set(IRIS.target_names)
    numbers = clone(small).fit(IRIS.data, IRIS.target)
    np.testing.assert_allclose(classifier.predict_proba(frame), numbers.predict_proba(IRIS.data), rtol=1e-5)
    named = classifier.set_output(transform="pandas").transform(frame)
    assert list(named.columns) == list(classifier.get_feature_names_out())
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[frame.columns[::-1]])


def test_few_samples_will_do() -> None:
    x, y = np.array([[0.0], [1.0], [5.0]]), ["a", "a", "b"]
    classifier = FaustClassifier(random_state=0).fit(x, y)
    assert list(classifier.predict([[0.2], [4.9]])) == ["a", "b"]
    assert classifier.model_.recipe.options["representatives"] == 1, "the smallest class has no more"
    assert FaustClassifier(batch_size=50, epochs=1).fit(x, y).model_.recipe.training.batch_size == 3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"widths": 100}, "^widths must be a list of whole numbers, got 100"),
        ({"widths": ()}, "^widths must be one or more"),
        ({"epochs": 0}, "^epochs must be at least 1, got 0"),
        ({"batch_size": "all"}, "^batch_size must be a whole number, got 'all'"),
        ({"representatives": 0}, "representatives must be at least 1, got 0"),
        ({"representatives": "many"}, "^representatives must be a whole number, got 'many'"),
        ({"learning_rate": -1.0}, "^learning_rate must be positive, got -1.0"),
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1"),
        ({"device": "abacus"}, "device must be auto or cpu or cuda or mps, got 'abacus'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(FaustnetError, match=sentence):
        FaustClassifier(**settings).fit(IRIS.data, IRIS.target)


def test_a_table_is_not_taken_for_images(fitted: FaustClassifier) -> None:
    with pytest.raises(BadInput, match="the form of the training data, a table, got 3"):
        fitted.predict(IRIS.data[:, :, None])
    with pytest.raises(BadInput, match="got one class"):
        FaustClassifier().fit(IRIS.data, np.zeros(150))


def test_the_benchmark_compares_both_on_the_same_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = {name: lambda seed: FaustClassifier((20,), epochs=5, random_state=seed) for name in benchmark.CLASSIFIERS}
    monkeypatch.setattr(benchmark, "CLASSIFIERS", fast)
    ours, theirs = benchmark.measure(IRIS.data, IRIS.target, repetitions=1).values()
    expected = cross_val_score(
        fast["FaustClassifier"](0), IRIS.data, IRIS.target,
        cv=benchmark.StratifiedKFold(5, shuffle=True, random_state=0),
    ).mean()  # fmt: skip
    assert ours["accuracy"] == theirs["accuracy"] == pytest.approx(expected)
    assert ours["fit_seconds"] > 0


def test_the_benchmarks_results_keep_what_is_promised() -> None:
    """Within a point of MLPClassifier's accuracy or better, in at most three times its time to fit."""
    results = json.loads((ROOT / "results" / "estimator.json").read_text())
    for name in ("digits", "wine", "breast cancer"):
        ours, theirs = (results["tables"][name][classifier] for classifier in benchmark.CLASSIFIERS)
        assert ours["accuracy"] > theirs["accuracy"] - 0.01
        assert ours["fit_seconds"] < 3 * theirs["fit_seconds"]


def test_a_class_is_added_without_training() -> None:
    X, y = load_digits(return_X_y=True)
    train, new = np.arange(len(y)) % 5 > 0, y == 0
    known = FaustClassifier(random_state=0).fit(X[train & ~new], y[train & ~new])
    before = known.predict_proba(X[~train & ~new])
    assert known.add_class(0, X[train & new][:10]) is known
    assert known.classes_.tolist() == [*range(1, 10), 0]
    assert known.score(X[~train & new], y[~train & new]) > 0.7
    assert known.score(X[~train & ~new], y[~train & ~new]) > 0.95
    after = known.predict_proba(X[~train & ~new])
    assert after.shape == (len(before), 10)
    nine = after[:, :9] / after[:, :9].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(nine, before, atol=1e-9)
    again = pickle.loads(pickle.dumps(known))
    np.testing.assert_array_equal(again.predict(X), known.predict(X))


def test_a_class_that_cannot_be_added_is_refused() -> None:
    X, y = load_digits(return_X_y=True)
    known = FaustClassifier(random_state=0, epochs=1).fit(X[y < 3], y[y < 3])
    with pytest.raises(FaustnetError, match="already has a class '2'"):
        known.add_class(2, X[y == 3])
    with pytest.raises(ValueError, match="must be of type int64, like the other labels, got 'three'"):
        known.add_class("three", X[y == 3])
    with pytest.raises(ValueError, match="features"):
        known.add_class(3, X[y == 3][:, :10])
    assert known.classes_.tolist() == [0, 1, 2]


def test_labels_of_any_kind_are_added() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["a", "b", "c"], dtype=object)[y]
    known = FaustClassifier(random_state=0, epochs=3).fit(X[y < 2], names[y < 2])
    assert known.add_class("c", X[y == 2]).classes_.tolist() == ["a", "b", "c"]
    assert set(known.predict(X)) <= {"a", "b", "c"}
