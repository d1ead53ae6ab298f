"""The user's own data, as users have it."""

import io
import os
import re
import struct
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from faustnet.data import load_data
from faustnet.data.image_file import find_images, read_image
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
    with pytest.raises(FaustnetError, match="floating-point numbers of unknown range"):
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


def png_header(width: int, height: int) -> bytes:
    """The beginning of a file that claims to be an image of this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + b"\0\0\0\x09IDAT"


def cut_short() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(256, size=(10, 12), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()[:-40]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a readable image (it is empty)"),
        (b"\x89PNG\r\n\x1a\n and no more", "is not a readable image"),
        (b"a text", "is not a readable image (its format is unknown)"),
        (cut_short(), "is not a readable image"),
        (png_header(8_000, 8_000), "has too many pixels (at most 50 million, or 89 million for JPEG): make it smaller"),
        (png_header(60_000, 60_000), "has too many pixels (at most 50 million, or 89 million for JPEG): make it smaller"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not a readable image (its format is unknown)"),
    ],
    ids=["empty", "broken", "text", "cut short", "large", "huge", "program"],
)
def test_an_image_that_cannot_be_read_is_left_out_and_named_or_refused(content: bytes, said: str, folder: Path) -> None:
    before = load_data(str(folder))
    (folder / "dog" / "broken.png").write_bytes(content)
    data = load_data(str(folder))
    (line,) = data.left_out
    assert f"broken.png {said}" in line
    assert torch.equal(data.train.pixels, before.train.pixels)
    assert torch.equal(data.test.labels, before.test.labels)
    with pytest.raises(FaustnetError, match=re.escape(said)):
        load_data(str(folder), strict=True)


def test_only_a_few_of_many_broken_images_are_named(folder: Path) -> None:
    for number in range(8):
        (folder / "dog" / f"broken {number}.png").touch()
    *named, rest = load_data(str(folder)).left_out
    assert [f"broken {number}.png" in line for number, line in enumerate(named)] == [True] * 5
    assert rest.startswith("3 more")


def test_a_class_of_broken_images_is_an_error(folder: Path) -> None:
    (folder / "emu").mkdir()
    (folder / "emu" / "1.png").touch()
    with pytest.raises(FaustnetError, match="emu contains no readable training image"):
        load_data(str(folder))


def test_what_is_not_an_image_is_counted_and_what_systems_leave_behind_is_not(folder: Path) -> None:
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store", "._0.png", "photo.HEIC", "notes.txt", "more.txt"):
        (folder / "cat" / name).touch()
    (folder / ".git").mkdir()
    (folder / "__MACOSX" / "cat").mkdir(parents=True)
    data = load_data(str(folder))
    assert data.class_names == ("cat", "dog")
    assert data.left_out == ("3 files whose suffix is not that of an image (.txt 2, .heic 1)",)


def test_images_in_folders_below_a_class_are_its_images_and_links_are_followed(folder: Path, tmp_path: Path) -> None:
    flat = load_data(str(folder))
    picture(folder / "dog" / "puppies" / "small" / "0.png", value=250)
    picture(tmp_path / "elsewhere" / "1.png", value=251)
    (folder / "dog" / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "dog" / "in circles").symlink_to(folder / "dog")
    (folder / "dog" / "everything").symlink_to(folder)
    (folder / "dog" / "one.png").symlink_to(tmp_path / "elsewhere" / "1.png")
    (folder / "dog" / "nowhere.png").symlink_to(tmp_path / "gone.png")
    data = load_data(str(folder))
    counts = [Counter(torch.cat([d.train.pixels, d.test.pixels])[:, 0, 0, 0].tolist()) for d in (flat, data)]
    assert counts[1] - counts[0] == {250: 1, 251: 2}
    assert [line.split(":")[0] for line in data.left_out] == [f"{folder / 'dog' / 'nowhere.png'} does not exist"]
    assert find_images(folder / "dog")[0] == sorted(find_images(folder / "dog")[0])


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "cat" / "pipe.png")
    assert "it is not a regular file" in load_data(str(folder)).left_out[0]


def test_a_folder_divided_in_another_way_is_not_taken_for_classes(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            picture(tmp_path / "own" / part / name / "1.png")
    with pytest.raises(FaustnetError, match="rename the parts to train and test"):
        load_data(str(tmp_path / "own"))
    (tmp_path / "own" / "val").rename(tmp_path / "own" / "test")
    picture(tmp_path / "own" / "valid" / "cat" / "1.png")
    assert "only the folders train and test are used" in load_data(str(tmp_path / "own")).left_out[0]
    for number in range(20):  # but it may well be a class
        picture(tmp_path / "vehicles" / "train" / f"{number}.png")
        picture(tmp_path / "vehicles" / "bus" / f"{number}.png")
    assert load_data(str(tmp_path / "vehicles")).class_names == ("bus", "train")


@pytest.mark.parametrize("parts", [("training", "testing"), ("Train", "Test"), ("TRAIN", "testing")])
def test_other_names_of_the_parts_are_the_split_too(parts: tuple[str, str], tmp_path: Path) -> None:
    for number, part in enumerate((*parts, "Valid")):
        for name in ("cat", "dog"):
            picture(tmp_path / "own" / part / name / "1.png", value=number)
    data = load_data(str(tmp_path / "own"))
    assert data.class_names == ("cat", "dog")
    assert (data.train.pixels.unique().tolist(), data.test.pixels.unique().tolist()) == ([0], [1])
    assert data.left_out == (f"{tmp_path / 'own' / 'Valid'}, because only the folders {parts[0]} and {parts[1]} are used",)
    (tmp_path / "own" / parts[1]).rename(tmp_path / "elsewhere")
    with pytest.raises(FaustnetError, match=r"has only folders: if .* is already split, rename the parts to train and test"):
        load_data(str(tmp_path / "own"))


def test_the_usual_name_of_a_part_has_precedence(tmp_path: Path) -> None:
    for part in ("Train", "test", "train", "training"):
        for name in ("cat", "dog"):
            picture(tmp_path / part / name / "1.png", value=200 if part == "train" else 3)
    data = load_data(str(tmp_path))
    assert data.train.pixels.unique().tolist() == [200]
    assert [line.split(",")[0] for line in data.left_out] == [str(tmp_path / name) for name in ("Train", "training")]


def test_images_beside_the_folders_of_classes_are_reported_or_refused(folder: Path, tmp_path: Path) -> None:
    before = load_data(str(folder))
    picture(folder / "loose.png")
    picture(folder / "b.JPG")
    (folder / "README.md").touch()
    data = load_data(str(folder))
    assert data.left_out == (
        f"2 images in no folder of a class, such as {folder / 'b.JPG'}: move all images into such folders",
    )
    assert torch.equal(data.train.pixels, before.train.pixels)
    with pytest.raises(FaustnetError, match=r"b.JPG is not in the folder of a class: move it into one, or remove it"):
        load_data(str(folder), strict=True)
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            picture(tmp_path / "own" / part / name / "1.png")
        picture(tmp_path / "own" / part / "loose.png")
    assert load_data(str(tmp_path / "own")).left_out[0].startswith("2 images in no folder of a class, such as")


@pytest.mark.parametrize("name", ["grey.png", "deep.png", "a.jpg", "cmyk.jpg", "alpha.png", "moving.gif", "a.webp", "p.png"])
def test_every_kind_of_image_keeps_its_picture(name: str, tmp_path: Path) -> None:
    """A dark left and a bright right half, large enough to be reduced while it is decoded."""
    grey = np.repeat(np.array([[40, 200]], np.uint8), 300, axis=0).repeat(200, axis=1)
    image, path, more = Image.fromarray(grey), tmp_path / name, {}
    if name == "deep.png":
        image = Image.fromarray(grey.astype(np.uint16) * 257)
    elif name == "cmyk.jpg":
        image = image.convert("CMYK")
    elif name == "alpha.png":
        image = image.convert("RGBA")
    elif name == "moving.gif":
        more = {"save_all": True, "append_images": [Image.new("L", image.size, 128)]}
    elif name == "p.png":
        image, more = image.convert("P"), {"transparency": bytes([255] * 255)}
    image.save(path, **more)
    for shape in ((1, 8, 6), (3, 8, 6)):
        pixels = read_image(path, shape)
        assert pixels.shape == shape
        assert (pixels[:, :, :2].int() - 40).abs().max() <= 3
        assert (pixels[:, :, -2:].int() - 200).abs().max() <= 3


def test_what_can_be_seen_through_is_on_white(tmp_path: Path) -> None:
    picture(tmp_path / "clear.png", "RGBA", (4, 4), (10, 0, 0, 0))
    picture(tmp_path / "half.png", "LA", (4, 4), (0, 128))
    assert read_image(tmp_path / "clear.png", (3, 2, 2)).unique().tolist() == [255]
    assert read_image(tmp_path / "half.png", (1, 4, 4)).unique().tolist() == [127]


def test_photographs_are_turned_upright_when_they_are_reduced_too(tmp_path: Path) -> None:
    image = Image.fromarray(np.repeat(np.array([[0], [255]], np.uint8), 200, axis=0).repeat(300, axis=1))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "side.jpg", exif=exif, quality=95)  # dark above bright; upright, dark is on the right
    upright = read_image(tmp_path / "side.jpg", (1, 6, 8))[0]
    assert upright[:, :3].min() > 250
    assert upright[:, 5:].max() < 5


def test_a_shape_that_is_asked_for_is_kept(folder: Path) -> None:
    assert load_data(str(folder), shape=(3, 7, 5)).test.shape == (3, 7, 5)


def test_an_empty_class_and_a_single_class_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "emu").mkdir()
    with pytest.raises(FaustnetError, match="emu contains no image"):
        load_data(str(folder))
    picture(tmp_path / "single" / "cat" / "1.png")
    with pytest.raises(FaustnetError, match="at least two classes, got 1"):
        load_data(str(tmp_path / "single"))


def test_reading_converts_and_resizes(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", "RGB", (20, 30), (255, 0, 0))
    assert read_image(tmp_path / "a.png", (3, 5, 4)).flatten(1)[:, 0].tolist() == [255, 0, 0]
    assert read_image(tmp_path / "a.png", (1, 5, 4)).unique().tolist() == [76]
    with pytest.raises(FaustnetError, match="does not exist"):
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
        ({"y_test": np.array(["a", "b", "c", "d", "a", "a"])}, "test images but no training images of the class d"),
        ({"y_train": np.array(["a"] * 12)}, "at least two classes, got 1"),
        ({"y_train": np.arange(12) / 2, "y_test": np.zeros(6)}, "y_train in .* must be integers or strings, got 0.5"),
        ({"y_train": np.arange(12.0), "y_test": np.full(6, np.nan)}, "y_test in .* must be integers or strings, got nan"),
        ({"y_train": np.array(["a", "b", "c"])}, "must have one label for each image"),
        ({"x_train": np.full((12, 6, 5), np.nan)}, "contains NaN, infinity"),
        ({"x_train": np.zeros((12, 7, 5), np.uint8)}, "must have images of one shape"),
        ({"x_train": np.full((12, 6, 5), 1e300)}, "beyond the range of float32"),
        ({"x_train": np.zeros((12, 0)), "x_test": np.zeros((6, 0))}, "must be images or rows of numbers"),
        ({"x_train": np.array(3)}, "must have one label for each image"),
        ({"x_train": np.zeros((12,), np.uint8)}, "must be images or rows of numbers"),
        ({"x_train": np.array(["x"] * 12)}, "must be images or rows of numbers"),
        (
            {"x_train": np.array([{}] * 12, dtype=object)},
            r"x_train in .*own\.npz must contain numbers, got the type object, .*: save x_train\.astype\(float\)\.",
        ),
        (
            {"y_test": np.array(["a", "b"] * 3, dtype=object)},
            r"y_test in .*own\.npz must contain numbers or strings, got the type object, .*: save y_test\.astype\(str\)\.",
        ),
    ],
)
def test_an_npz_file_with_something_wrong_is_refused(changes: dict[str, np.ndarray], said: str, tmp_path: Path) -> None:
    with pytest.raises(FaustnetError, match=said):
        load(tmp_path, **changes)


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "half.npz", x_train=np.zeros((2, 2)))
    with pytest.raises(FaustnetError, match=r"must contain the arrays .*, but has no y_train: add it"):
        load_data(str(tmp_path / "half.npz"))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(FaustnetError, match=r"is not a readable .npz file"):
        load_data(str(tmp_path / "broken.npz"))
    (tmp_path / "table.txt").write_text("1,2")
    with pytest.raises(
        FaustnetError, match=r"must be a folder with one folder per class, a folder of shards, an .npz file, a file of texts"
    ):
        load_data(str(tmp_path / "table.txt"))
