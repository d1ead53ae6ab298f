"""Approximate predictions with an index of the references."""

import sys
from dataclasses import replace

import pytest
import torch

from faustnet.data import Images
from faustnet.errors import FaustnetError
from faustnet.methods import Faust, PredictionSettings
from faustnet.nn.search import MANY
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.training.evaluation import all_embeddings

CLASSES = MANY + 100


def images(count: int, seed: int = 0) -> torch.Tensor:
    """Random images that are their own mirror images."""
    left = torch.randint(256, (count, 1, 6, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return torch.cat([left, left.flip(-1)], dim=-1)


def changed(pixels: torch.Tensor, seed: int) -> torch.Tensor:
    """Similar images, as others of the same classes."""
    noise = torch.randint(-30, 31, pixels.shape, generator=torch.Generator().manual_seed(seed))
    return (pixels + noise).clamp(0, 255).byte()


def make_model(method: str = "faust-tuplet", classes: int = CLASSES, **options: object) -> Model:
    """An untrained model whose references are embeddings of random images."""
    recipe = recipe_from({"method": method, "network": {"widths": [24, 20], "embedding": 16}, "options": options})
    some = Images(images(classes), torch.zeros(classes, dtype=torch.long))
    model = Model.fresh(recipe, some, [f"class {number}" for number in range(classes)])
    if isinstance(model.method, Faust):
        each = model.method.count
        shown = changed(images(classes).repeat_interleave(each, dim=0), seed=1)
        embedded = all_embeddings(model.method, model.source(model.images(shown)))
        model.method.references.set(embedded)
        model.method.mark_ready()
    return model


def test_an_index_needs_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(FaustnetError, match=r"pip install 'faustnet\[faiss\]'"):
        make_model().indexed(images(10))


@pytest.mark.parametrize(
    ("method", "options"), [("faust-tuplet", {}), ("faust-representative", {"representatives": 3, "scale": 1.0})]
)
@pytest.mark.parametrize("settings", [{}, {"mirror": True}, {"weights": (0.5, 2.0)}, {"layers": "last"}])
def test_with_all_cells_predictions_are_exact(method: str, options: dict[str, float], settings: dict[str, object]) -> None:
    pytest.importorskip("faiss")
    model = make_model(method, **options)
    model.method.set_prediction(PredictionSettings(**settings))  # type: ignore[arg-type]
    shown = changed(images(150), seed=2)
    indexed = model.indexed(shown, recall=0.9)
    indexed.visited = CLASSES
    expected = model.predict(shown)
    assert len({one.class_name for one in expected}) > 100
    for found, exact in zip(indexed.predict(shown), expected, strict=True):
        assert found.class_name == exact.class_name
        assert found.score == pytest.approx(exact.score, rel=1e-4)
        assert found.votes == exact.votes


def test_the_recall_is_that_of_the_given_images() -> None:
    pytest.importorskip("faiss")
    model = make_model()
    shown = images(200, seed=2)  # far from all classes, so that the nearest is hard to find
    indexed = model.indexed(shown, recall=0.7)
    pairs = zip(indexed.predict(shown), model.predict(shown), strict=True)
    same = sum(found.class_name == exact.class_name for found, exact in pairs) / len(shown)
    assert indexed.recall == pytest.approx(same)
    assert same >= 0.7
    assert indexed.visited <= model.indexed(shown, recall=0.95).visited
    assert len(indexed.predict(images(130), [2])) == 130


def test_images_far_from_all_classes_are_rejected() -> None:
    pytest.importorskip("faiss")
    model = make_model()
    own, others = changed(images(50), seed=1), images(50, seed=3)
    calibrated = model.calibrate(own, 1.0)
    indexed = calibrated.indexed(own)
    assert [one.class_name for one in indexed.predict(own, reject=True)] == [f"class {number}" for number in range(50)]
    assert all(one.class_name == "unknown" for one in indexed.predict(others, reject=True))
    with pytest.raises(FaustnetError, match="no rejection threshold yet"):
        replace(model).indexed(own).predict(own, reject=True)


def test_an_index_refuses_what_it_cannot_do() -> None:
    pytest.importorskip("faiss")
    with pytest.raises(FaustnetError, match=f"at least {MANY} references, got 20: use the model without an index"):
        make_model(classes=20).indexed(images(5))
    model = make_model()
    for recall in (0, 1.5, float("nan")):
        with pytest.raises(FaustnetError, match="recall must be above 0 and at most 1, got"):
            model.indexed(images(5), recall)
    with pytest.raises(FaustnetError, match="pixels must contain at least one image"):
        model.indexed(images(0))
    with pytest.raises(FaustnetError, match="An index needs a FAUST model, got backprop"):
        make_model("backprop").indexed(images(5))
