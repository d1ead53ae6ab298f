"""FaustClassifier: warm starts and training on samples that arrive in parts."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import train_test_split

from faustnet import FaustClassifier
from faustnet.estimator import BadInput

IRIS = load_iris()
PIXELS, DIGITS = load_digits(return_X_y=True)
TRAIN_X, TEST_X, TRAIN_Y, TEST_Y = train_test_split(PIXELS, DIGITS, random_state=0, stratify=DIGITS)
PICKLE = Path(__file__).parent / "fixtures" / "0.1" / "estimator-table.pickle"


def small(**parameters: object) -> FaustClassifier:
    return FaustClassifier((32, 24), embedding=8, random_state=0, **{"epochs": 2, **parameters})


def weight(classifier: FaustClassifier) -> np.ndarray:
    return next(classifier.model_.method.network.parameters()).detach().numpy()


def test_a_warm_start_continues_from_the_weights() -> None:
    classifier = small(warm_start=True).fit(TRAIN_X, TRAIN_Y)
    first, scaler, accuracy = weight(classifier).copy(), classifier.scaler_, classifier.score(TEST_X, TEST_Y)
    classifier.set_params(learning_rate=1e-9).fit(TRAIN_X, TRAIN_Y)
    np.testing.assert_allclose(weight(classifier), first, atol=1e-6)
    classifier.set_params(learning_rate=3e-3, epochs=4).fit(TRAIN_X * 1.01, TRAIN_Y)
    assert classifier.score(TEST_X, TEST_Y) > accuracy
    assert classifier.scaler_ is scaler, "the weights expect it"
    assert (classifier.n_iter_, len(classifier.loss_curve_)) == (8, 8)
    assert classifier.loss_curve_[7] < classifier.loss_curve_[1]
    again = small(warm_start=True).fit(TRAIN_X, TRAIN_Y)
    assert np.array_equal(weight(again), first), "the first fit starts with random weights"
    assert small().fit(TRAIN_X, TRAIN_Y).fit(TRAIN_X, TRAIN_Y).n_iter_ == 2


def test_a_warm_start_refuses_other_classes_columns_and_networks() -> None:
    classifier = small(warm_start=True).fit(IRIS.data, IRIS.target)
    with pytest.raises(
        BadInput, match=r"y must contain the classes of the first fit, \[.*0.*\], got .*set warm_start=False"
    ):
        classifier.fit(IRIS.data[:100], IRIS.target[:100])
    with pytest.raises(ValueError, match="X has 3 features, but FaustClassifier is expecting 4 features"):
        classifier.fit(IRIS.data[:, :3], IRIS.target)
    with pytest.raises(BadInput, match=r"widths must be \(32, 24\) to train the fitted network further, got \(8,\)"):
        classifier.set_params(widths=(8,)).fit(IRIS.data, IRIS.target)
    with pytest.raises(BadInput, match="embedding must be 8 to train the fitted network further, got 4"):
        classifier.set_params(widths=(32, 24), embedding=4).partial_fit(IRIS.data, IRIS.target)


def parts(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(np.array_split(TRAIN_X, count), np.array_split(TRAIN_Y, count), strict=True))


def test_samples_in_parts_are_learned_about_as_well_as_all_at_once() -> None:
    classifier = small()
    for _ in range(6):
        for x, y in parts(6):
            classifier.partial_fit(x, y, classes=range(10))
    whole = small(epochs=8).fit(TRAIN_X, TRAIN_Y)
    assert classifier.score(TEST_X, TEST_Y) > whole.score(TEST_X, TEST_Y) - 0.03
    assert (classifier.n_iter_, len(classifier.loss_curve_)) == (36, 36)
    assert np.mean(classifier.loss_curve_[-6:]) < 0.5 * np.mean(classifier.loss_curve_[:6])
    np.testing.assert_allclose(classifier.predict_proba(TEST_X).sum(axis=1), 1)


def test_the_optimiser_goes_on_between_parts_and_in_a_pickle() -> None:
    one, other = small(), small()
    for number, (x, y) in enumerate(parts(6)):
        one.partial_fit(x, y, classes=range(10))
        other.partial_fit(x, y, classes=range(10))
        if number == 2:
            other = pickle.loads(pickle.dumps(other))
    steps = {float(value) for name, value in one._optimiser_state.items() if name.endswith("/step")}
    assert steps == {6 * 8.0}, "parts of 225 in batches of 32"
    assert np.array_equal(one.predict_proba(TEST_X), other.predict_proba(TEST_X))


def test_the_representatives_of_a_class_are_its_first_samples() -> None:
    x, y = TRAIN_X[:40], TRAIN_Y[:40]
    classifier = small(representatives=3).partial_fit(x[:20], y[:20], classes=range(10))
    classifier.partial_fit(x[20:], y[20:]).partial_fit(TRAIN_X[40:200], TRAIN_Y[40:200])
    model = classifier.model_
    columns = torch.from_numpy(classifier.scaler_.transform(TRAIN_X[:200])).float()[:, :, None, None]
    rows = model.scaling(columns).flatten(1).numpy()
    found = model.method.state_dict()["images"].flatten(1).numpy().reshape(10, 3, -1)
    for number in range(10):
        first = rows[TRAIN_Y[:200] == number][:3]
        np.testing.assert_allclose(found[number][found[number].sum(1).argsort()], first[first.sum(1).argsort()], atol=1e-5)


def test_classes_without_a_sample_so_far_are_not_predicted() -> None:
    x, y = IRIS.data, IRIS.target_names[IRIS.target]
    classifier = small().partial_fit(x[:30], y[:30], classes=IRIS.target_names)
    assert set(classifier.predict(x)) == {"setosa"}
    classifier.partial_fit(x[40:90], y[40:90])
    assert list(classifier.classes_) == sorted(IRIS.target_names)
    assert (classifier.predict_proba(x)[:, 2] == 0).all()
    for _ in range(60):
        classifier.partial_fit(x, y)
    assert classifier.score(x, y) > 0.9
    assert classifier.model_.class_names == tuple(classifier.classes_)


def test_parts_follow_a_fit_and_an_added_class() -> None:
    known = IRIS.target < 2
    classifier = small(epochs=20).fit(IRIS.data[known], IRIS.target[known])
    before = classifier.score(IRIS.data[known], IRIS.target[known])
    classifier.add_class(2, IRIS.data[100:105])
    for _ in range(20):
        classifier.partial_fit(IRIS.data, IRIS.target)
    assert before > 0.95
    assert classifier.score(IRIS.data, IRIS.target) > 0.9
    assert classifier.n_iter_ == 40


def test_images_can_arrive_in_parts() -> None:
    images = PIXELS.reshape(-1, 8, 8).astype(np.uint8)
    classifier = small()
    for _ in range(4):
        for part in np.array_split(np.arange(1000), 5):
            classifier.partial_fit(images[part], DIGITS[part], classes=range(10))
    assert classifier.score(images[1000:], DIGITS[1000:]) > 0.8
    with pytest.raises(BadInput, match=r"images of 1×8×8, like those of the model to start from, got images of 1×4×4"):
        classifier.partial_fit(images[:20, :4, :4], DIGITS[:20])


def test_mistakes_of_partial_fit_are_sentences() -> None:
    x, y = IRIS.data, IRIS.target
    with pytest.raises(BadInput, match="classes must contain all labels in the first call of partial_fit, got None"):
        small().partial_fit(x, y)
    with pytest.raises(BadInput, match="classes must contain at least two labels"):
        small().partial_fit(x[:10], y[:10], classes=[0])
    classifier = small().partial_fit(x, y, classes=[0, 1, 2])
    with pytest.raises(BadInput, match="classes must be those of the first call of partial_fit"):
        classifier.partial_fit(x, y, classes=[0, 1])
    with pytest.raises(BadInput, match=r"y must contain only classes of the first call, .*, got .*3"):
        classifier.partial_fit(x, y + 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::sklearn.exceptions.InconsistentVersionWarning")
def test_a_pickle_of_version_0_1_can_be_trained_further() -> None:
    old = pickle.loads(PICKLE.read_bytes())
    assert not old.warm_start
    x = np.repeat(old.scaler_.mean_[None], 4, axis=0)
    old.partial_fit(x, old.classes_[[0, 1, 0, 1]])
    assert old.predict(x).shape == (4,)
