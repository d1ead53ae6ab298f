"""The user's own data, as users have it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from faustnet.data import load_data
from faustnet.data.own import read_image
from faustnet.errors import FaustnetError


def picture(path: Path, mode: str = "L", size: tuple[int, int] = (12, 10), value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["cat", "dog"]):
        for i in range(30):
            picture(tmp_path / "pets" / name / f"{i}.png", value=100 * number + i)
    return tmp_path / "pets"


def test_a_folder_of_class_folders_becomes_a_data_set_with_a_fifth_held_out(folder: Path) -> None:
    (folder / "cat" / "notes.txt").write_text("not an image, and not in the way")
    data = load_data(str(folder))
    assert (data.name, data.class_names) == ("pets", ("cat", "dog"))
    assert data.train.shape == (1, 10, 12)
    assert len(data.train) + len(data.test) == 60
    assert 4 <= len(data.test) <= 20
    for images in (data.train, data.test):
        assert torch.equal(images.pixels[:, 0, 0, 0] // 100, images.labels.to(torch.uint8))


def test_what_is_held_out_stays_so_when_images_come_and_go(folder: Path) -> None:
    def held_out() -> set[int]:
        return set(load_data(str(folder)).test.pixels[:, 0, 0, 0].tolist())

    before = held_out()
    for number in range(30, 60):
        picture(folder / "cat" / f"{number}.png", value=number)
    after = held_out()
    assert before == {value for value in after if value < 30 or value >= 100}
    (folder / "dog" / "7.png").unlink()
    assert held_out() == after - {107}


def test_images_of_16_bits_keep_their_greys_and_fractions_are_refused(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65_535, 20).astype(np.uint16).reshape(4, 5)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    assert np.array_equal(read_image(tmp_path / "deep.png", (1, 4, 5))[0].numpy(), ramp // 256)
    Image.fromarray(np.zeros((4, 5), np.float32)).save(tmp_path / "fractions.tif")
    with pytest.raises(FaustnetError, match="fractions of no known range"):
        read_image(tmp_path / "fractions.tif", (1, 4, 5))


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 255]], np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was held on its side
    image.save(tmp_path / "side.png", exif=exif)
    assert read_image(tmp_path / "side.png", (1, 2, 1)).flatten().tolist() == [0, 255]


def test_a_folder_that_is_divided_already_is_left_so(folder: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            picture(tmp_path / "own" / part / name / "1.png", value=200 if part == "test" else 3)
    data = load_data(str(tmp_path / "own"))
    assert data.train.pixels.unique().tolist() == [3]
    assert data.test.pixels.unique().tolist() == [200]


def test_images_of_different_sizes_and_modes_are_brought_together(folder: Path) -> None:
    picture(folder / "cat" / "wide.png", "RGB", (64, 20))
    picture(folder / "cat" / "see-through.png", "RGBA", (9, 9))
    picture(folder / "dog" / "palette.png", "P", (7, 7))
    assert load_data(str(folder)).train.shape == (3, 32, 32)
    assert load_data(str(folder), image_size=16).train.shape == (3, 16, 16)


def test_an_image_that_is_not_one_is_named(folder: Path) -> None:
    (folder / "dog" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    with pytest.raises(FaustnetError, match=r"broken.png is not an image that can be read"):
        load_data(str(folder))


def test_an_image_cut_short_is_named(folder: Path) -> None:
    path = folder / "dog" / "0.png"
    Image.fromarray(np.random.default_rng(0).integers(256, size=(10, 12), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FaustnetError, match=r"0.png is not an image that can be read"):
        load_data(str(folder))


def test_an_empty_class_and_a_single_class_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "emu").mkdir()
    with pytest.raises(FaustnetError, match="emu holds no image"):
        load_data(str(folder))
    picture(tmp_path / "single" / "cat" / "1.png")
    with pytest.raises(FaustnetError, match="two classes or more; it holds 1"):
        load_data(str(tmp_path / "single"))


def test_reading_converts_and_resizes(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", "RGB", (20, 30), (255, 0, 0))
    assert read_image(tmp_path / "a.png", (3, 5, 4)).flatten(1)[:, 0].tolist() == [255, 0, 0]
    assert read_image(tmp_path / "a.png", (1, 5, 4)).unique().tolist() == [76]
    with pytest.raises(FaustnetError, match="There is no file"):
        read_image(tmp_path / "b.png", (1, 5, 4))


def arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).integers(256, size=(12, 6, 5), dtype=np.uint8)
    y = np.array(["b", "a", "c"] * 4)
    return {"x_train": x, "y_train": y, "x_test": x[:6], "y_test": y[:6], **changes}


def load(path: Path, **changes: np.ndarray):  # type: ignore[no-untyped-def]
    np.savez(path / "own.npz", **arrays(**changes))
    return load_data(str(path / "own.npz"))


def test_an_npz_file_has_any_labels_and_bytes_stay_bytes(tmp_path: Path) -> None:
    data = load(tmp_path)
    assert data.class_names == ("a", "b", "c")
    assert data.train.labels.tolist() == [1, 0, 2] * 4
    assert data.train.pixels.shape == (12, 1, 6, 5)
    assert np.array_equal(data.train.pixels[:, 0].numpy(), arrays()["x_train"])


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((4, 5, 3), np.uint8, (3, 4, 5)),
        ((3, 4, 5), np.uint8, (3, 4, 5)),
        ((4, 5, 3), np.int64, (3, 4, 5)),
        ((7,), np.float64, (7, 1, 1)),
    ],
)
def test_an_npz_file_may_hold_colour_images_or_a_table(
    shape: tuple[int, ...], dtype: type, expected: tuple[int, ...], tmp_path: Path
) -> None:
    x = np.random.default_rng(0).integers(256, size=(12, *shape)).astype(dtype)
    data = load(tmp_path, x_train=x, x_test=x[:6])
    assert data.train.shape == expected
    assert data.train.pixels.dtype == (torch.float32 if dtype is np.float64 else torch.uint8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_test": np.array(["a", "b", "c", "d", "a", "a"])}, "test images of class d but none to train on"),
        ({"y_train": np.array(["a"] * 12)}, "two classes or more"),
        ({"y_train": np.array(["a", "b", "c"])}, "give each image a label"),
        ({"x_train": np.full((12, 6, 5), np.nan)}, "holds NaN, infinity"),
        ({"x_train": np.zeros((12, 7, 5), np.uint8)}, "make them alike"),
        ({"x_train": np.full((12, 6, 5), 1e300)}, "numbers as large"),
        ({"x_train": np.zeros((12, 0)), "x_test": np.zeros((6, 0))}, "give images or rows of numbers"),
        ({"x_train": np.array(3)}, "give each image a label"),
        ({"x_train": np.zeros((12,), np.uint8)}, "give images or rows of numbers"),
        ({"x_train": np.array(["x"] * 12)}, "give images or rows of numbers"),
        ({"x_train": np.array([{}] * 12, dtype=object)}, "does not hold plain arrays"),
    ],
)
def test_an_npz_file_with_something_wrong_is_refused(changes: dict[str, np.ndarray], said: str, tmp_path: Path) -> None:
    with pytest.raises(FaustnetError, match=said):
        load(tmp_path, **changes)


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "half.npz", x_train=np.zeros((2, 2)))
    with pytest.raises(FaustnetError, match="has no array 'y_train'"):
        load_data(str(tmp_path / "half.npz"))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(FaustnetError, match="does not hold plain arrays"):
        load_data(str(tmp_path / "broken.npz"))
    (tmp_path / "table.csv").write_text("1,2")
    with pytest.raises(FaustnetError, match="neither a folder of class folders nor"):
        load_data(str(tmp_path / "table.csv"))
