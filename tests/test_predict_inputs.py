"""What `Model.predict` takes: images of Pillow, image files, and arrays with channels last."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import faustnet
from faustnet import FaustnetError, Model
from faustnet.data import DataSet


@pytest.fixture(scope="module")
def colours(digits: DataSet) -> np.ndarray:
    """Digits in colour, as bytes. (n, 8, 8, 3)"""
    grey = digits.test.all_pixels.numpy().transpose(0, 2, 3, 1)
    return np.concatenate([grey, 255 - grey, grey // 2], axis=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, digits: DataSet, colours: np.ndarray) -> Model:
    labels = digits.test.labels.numpy()
    recipe = {"network": {"widths": [32], "embedding": 8}, "training": {"epochs": 3, "batch_size": 32}}
    folder = tmp_path_factory.mktemp("runs") / "colours"
    return faustnet.train(recipe, folder, data=(colours, labels), test=(colours, labels), device="cpu").model()


def test_pictures_files_and_arrays_are_predicted_alike(model: Model, colours: np.ndarray, tmp_path: Path) -> None:
    some = colours[:6]
    wanted = model.predict(torch.from_numpy(some).permute(0, 3, 1, 2))
    assert len({one.class_name for one in wanted}) > 2
    assert model.predict(some) == wanted
    pictures = [Image.fromarray(one) for one in some]
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    for given in (
        pictures,
        tuple(pictures),
        paths,
        list(map(str, paths)),
        [*pictures[:2], *map(str, paths[2:4]), *paths[4:]],
    ):
        assert model.predict(given) == wanted
    assert model.predict(pictures[0]) == model.predict(paths[0]) == model.predict(str(paths[0])) == model.predict(some[:1])
    assert model.predict_early(paths, 0.0)[0].class_name == model.predict_early(some, 0.0)[0].class_name
    assert torch.equal(model.scores(paths), model.scores(some))


def test_pictures_are_resized_and_converted_like_files(model: Model, tmp_path: Path) -> None:
    tall = Image.fromarray(np.arange(20 * 10 * 3, dtype=np.uint8).reshape(20, 10, 3))
    exif = tall.getexif()
    exif[0x0112] = 6  # rotated by 90 degrees
    tall.save(tmp_path / "turned.png", exif=exif)
    turned = Image.open(tmp_path / "turned.png")
    size = turned.size
    clear = Image.new("RGBA", (9, 9), (10, 200, 30, 100))
    clear.save(tmp_path / "clear.png")
    grey = Image.new("L", (3, 5), 77)
    grey.save(tmp_path / "grey.png")
    files = [tmp_path / f"{name}.png" for name in ("turned", "clear", "grey")]
    assert torch.equal(model.images([turned, clear, grey]).all_pixels, model.images(files).all_pixels)
    assert turned.size == size, "the user's image stays as it is"


def test_mistakes_are_sentences(model: Model, colours: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(FaustnetError, match=r"nothing\.png does not exist: check its name"):
        model.predict([str(tmp_path / "nothing.png")])
    (tmp_path / "broken.png").write_bytes(b"not an image")
    with pytest.raises(FaustnetError, match=r"broken\.png is not a readable image \(its format is unknown\)"):
        model.predict(tmp_path / "broken.png")
    with pytest.raises(FaustnetError, match="Item 2 must be an image of Pillow or the path of an image file, got int"):
        model.predict([Image.new("RGB", (8, 8)), 3])
    with pytest.raises(FaustnetError, match=r"Image 1 cannot be used \(its pixels are floating-point numbers"):
        model.predict(Image.new("F", (8, 8)))
    with pytest.raises(FaustnetError, match="must be images of 3×8×8 for this model, got images of 7×8×3"):
        model.predict(colours[:, :7])
    with pytest.raises(FaustnetError, match="must be images of 3×8×8 for this model, got rows of 5 columns"):
        model.predict(np.zeros((2, 5, 1, 1), np.uint8))
    with pytest.raises(
        FaustnetError, match=r"pixels must be \(n, 3, 8, 8\), got \(3, 8, 8\): for a single sample, use x\[None\]"
    ):
        model.predict(np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(FaustnetError, match="uint8 from 0 to 255 for this model"):
        model.predict(colours / 255)
    with pytest.raises(FaustnetError, match="pixels must be a tensor or an array, or images of Pillow and paths"):
        model.predict({"a": 1})


def test_files_are_for_models_of_bytes(tmp_path: Path, digits: DataSet) -> None:
    x, y = digits.test.all_pixels.float() / 255, digits.test.labels
    recipe = {"network": {"widths": [16], "embedding": 8}, "training": {"epochs": 1, "batch_size": 32}}
    model = faustnet.train(recipe, tmp_path / "run", data=(x, y), test=(x, y), device="cpu").model()
    with pytest.raises(FaustnetError, match="Image files have pixels from 0 to 255, but this model was trained on other"):
        model.predict(Image.new("L", (8, 8)))
    assert len(model.predict(x.permute(0, 2, 3, 1).numpy())) == len(y)


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    """Rows of a table with small values. (120, 12)"""
    return (np.random.default_rng(0).normal(size=(120, 12)) + np.arange(120)[:, None] % 3) / 1000


@pytest.fixture(scope="module")
def table_model(tmp_path_factory: pytest.TempPathFactory, table: np.ndarray) -> Model:
    recipe = {"network": {"widths": [16], "embedding": 8}, "training": {"epochs": 3, "batch_size": 32}}
    folder = tmp_path_factory.mktemp("runs") / "table"
    return faustnet.train(recipe, folder, data=(table, np.arange(120) % 3), device="cpu").model()


def test_mistakes_about_tables_name_columns(table_model: Model, table: np.ndarray) -> None:
    with pytest.raises(
        FaustnetError, match="must be rows of 12 columns for this model, got rows of 11 columns: use data of"
    ):
        table_model.predict(table[:, :11])
    with pytest.raises(FaustnetError, match=r"pixels must be \(n, 12\), got \(12,\): for a single sample, use x\[None\]\."):
        table_model.predict(table[0])
    assert len(table_model.predict(table[0][None])) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_values_that_are_not_finite_are_refused(value: float, table_model: Model, table: np.ndarray) -> None:
    broken = table.copy()
    broken[7, 3] = value
    for call in (
        table_model.predict,
        table_model.scores,
        table_model.calibrate,
        lambda x: table_model.predict_early(x, 0.1),
        lambda x: table_model.add_class("new", x),
    ):
        with pytest.raises(
            FaustnetError, match="pixels must contain finite values only, got NaN, infinity or values beyond"
        ):
            call(broken)
    large = torch.full((4, 12), 60_000.0, dtype=torch.float16)  # whose sum in this type is infinite
    assert len(table_model.predict(large)) == 4


def test_a_threshold_is_finite(table_model: Model, table: np.ndarray) -> None:
    assert math.isfinite(table_model.calibrate(table).threshold or math.nan)
    with pytest.raises(
        FaustnetError, match="The threshold must be finite, got nan: scale the pixels like the training data"
    ):
        table_model.calibrate(np.full((5, 12), 1e38, np.float32))
