"""Files of the well-known data sets: whole, damaged, hostile and downloaded."""

import gzip
import hashlib
import io
import os
import pickle
import socket
import struct
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from platformdirs import user_cache_path
from sklearn.datasets import load_digits

from faustnet.data import DataSet, Images, load_data
from faustnet.data.cifar import read_batch
from faustnet.data.download import data_folder, fetch
from faustnet.data.idx import read_idx
from faustnet.data.official import cifar10, mnist
from faustnet.errors import FaustnetError
from processes import Program


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist_files() -> dict[str, bytes]:
    numbers = np.random.default_rng(0)
    files = {}
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        images = np.zeros((count, 28, 28), np.uint8)
        images[:50] = numbers.integers(256, size=(50, 28, 28))
        files[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(idx(images), 1)
        files[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(idx((np.arange(count) % 10).astype(np.uint8)), 1)
    return files


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return mnist_files()


@pytest.fixture
def folder(tmp_path: Path, files: dict[str, bytes]) -> Path:
    """A data folder with MNIST's files in torchvision's layout."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in files.items():
        (raw / name).write_bytes(content)
    return tmp_path


def test_digits_need_no_file_and_a_fifth_of_them_is_held_out(digits: DataSet) -> None:
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert digits.train.shape == (1, 8, 8)
    assert digits.train.pixels.dtype == torch.uint8
    assert digits.train.pixels.max() == 255


def test_digits_are_scikit_learns_split_in_its_stratified_way(digits: DataSet) -> None:
    bunch = load_digits()
    pixels = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    train, test = Images(pixels, torch.from_numpy(bunch.target).long()).split(0.2, seed=0)
    for own, expected in ((digits.train, train), (digits.test, test)):
        assert torch.equal(own.pixels, expected.pixels)
        assert torch.equal(own.labels, expected.labels)


def test_files_in_torchvisions_layout_are_used_as_they_are(folder: Path, files: dict[str, bytes]) -> None:
    zipped = load_data("mnist", folder)
    assert zipped.train.pixels.shape == (60_000, 1, 28, 28)
    assert zipped.test.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    for name, content in files.items():
        (folder / "MNIST/raw" / name).unlink()
        (folder / "MNIST/raw" / name.removesuffix(".gz")).write_bytes(gzip.decompress(content))
    assert torch.equal(load_data("mnist", folder).train.pixels, zipped.train.pixels)


def test_the_data_folder_may_be_named_by_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAUSTNET_DATA", str(folder))
    assert len(load_data("mnist").test) == 10_000


def test_the_data_folder_is_in_the_cache_of_the_user_unless_it_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAUSTNET_DATA", raising=False)
    assert data_folder() == user_cache_path("faustnet", appauthor=False)
    monkeypatch.setenv("FAUSTNET_DATA", str(tmp_path / "set"))
    assert data_folder() == tmp_path / "set"
    assert data_folder(tmp_path / "chosen") == tmp_path / "chosen"


@pytest.mark.parametrize("package", ["platformdirs", "pooch"])
def test_without_the_packages_for_downloads_known_data_are_read_and_others_are_refused_with_a_remedy(
    package: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAUSTNET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, package, None)
    assert len(load_data("digits").test) == 360
    assert len(load_data("mnist", folder).test) == 10_000
    with pytest.raises(FaustnetError, match=f"the package {package}.*(FAUSTNET_DATA|save it as)"):
        load_data("cifar10")


def test_importing_the_package_imports_nothing_that_only_downloads_need() -> None:
    program = "import sys, faustnet.runs.session; print({'pooch', 'platformdirs', 'requests'} & sys.modules.keys())"
    assert Program(program).communicate() == ("set()\n", "")


WHOLE = gzip.compress(idx(np.zeros((10_000,), np.uint8)), 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "header does not say 10000 bytes"),
        (b"<html>not found</html>", "header does not say 10000 bytes"),
        (WHOLE[:-20], "ended before the end-of-stream"),
        (WHOLE[:40] + b"\xff" * 20 + WHOLE[60:], "is damaged or not the file"),
        (gzip.compress(idx(np.zeros((9_999,), np.uint8))), "header does not say 10000 bytes"),
        (gzip.compress(idx(np.zeros((10_000,), np.uint8))[:-1]), "shorter than its header says"),
        (gzip.compress(idx(np.zeros((10_000,), np.uint8)) + b"x"), "longer than its header says"),
        (gzip.compress(idx(np.zeros((10_000,), np.float32), kind=13)), "header does not say"),
        (gzip.compress(idx(np.full((10_000,), 10, np.uint8))), "has the label 10"),
    ],
    ids=["empty", "html", "truncated", "corrupt", "short", "early", "late", "floats", "label"],
)
def test_a_damaged_file_is_named_with_what_to_do(content: bytes, said: str, folder: Path) -> None:
    path = folder / "MNIST/raw/t10k-labels-idx1-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(FaustnetError, match=said) as error:
        load_data("mnist", folder)
    assert str(path) in str(error.value)
    assert "delete it" in str(error.value)


def test_a_file_is_never_read_beyond_what_it_should_hold(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(idx(np.zeros((10,), np.uint8)) + bytes(200 << 20), 1))
    with pytest.raises(FaustnetError, match="longer than its header says"):
        read_idx(bomb, (10,))


def batch_content(**changes: object) -> dict[str, object]:
    data = np.arange(10_000 * 3072, dtype=np.uint32).astype(np.uint8).reshape(10_000, 3072)
    return {"batch_label": "a test", "data": data, "labels": [n % 10 for n in range(10_000)], **changes}


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_cifar_batch_is_read_whatever_pickle_wrote_it(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(batch_content(), protocol=protocol))
    images, labels = read_batch(path)
    assert np.array_equal(images, batch_content()["data"])
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


class Hostile:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    path, made = tmp_path / "batch", tmp_path / "made"
    path.write_bytes(pickle.dumps(batch_content(labels=Hostile(made))))
    with pytest.raises(FaustnetError, match=r"refers to posix.mkdir, which image data does not need"):
        read_batch(path)
    assert not made.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps(batch_content())[:100_000],
        pickle.dumps([1, 2]),
        pickle.dumps({"data": [[0]], "labels": [0]}),
        pickle.dumps(batch_content(data=np.zeros((10, 3072), np.uint8))),
        pickle.dumps(batch_content(data=np.zeros((10_000, 3072), np.int8))),
        pickle.dumps(batch_content(labels=[10] * 10_000)),
        pickle.dumps(batch_content(labels=[0.5] * 10_000)),
        pickle.dumps(batch_content(labels=[0] * 9_999)),
    ],
    ids=["empty", "text", "truncated", "list", "no array", "few", "signed", "label 10", "halves", "labels"],
)
def test_a_damaged_cifar_batch_is_named_with_what_to_do(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(FaustnetError, match="delete it to download CIFAR-10 again") as error:
        read_batch(path)
    assert str(path) in str(error.value)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder, and the address that serves it."""
    folder = tmp_path_factory.mktemp("served")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def test_missing_files_are_downloaded_from_the_first_mirror_that_has_them_whole(
    served: tuple[Path, str], files: dict[str, bytes], tmp_path: Path
) -> None:
    folder, address = served
    (folder / "damaged").mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / "damaged" / name).write_bytes(content[:-1])
    sums = {name: md5(content) for name, content in files.items()}
    ours = replace(mnist, mirrors=(f"{address}nothing/", f"{address}damaged/", address), md5=sums)
    assert len(ours(tmp_path).train) == 60_000
    assert sorted(path.name for path in (tmp_path / "MNIST/raw").iterdir()) == sorted(files)
    for name in files:
        (folder / name).unlink()
    assert len(ours(tmp_path).train) == 60_000, "the second time nothing is asked for"


def test_a_damaged_download_never_appears_under_its_name(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    (folder / "file.gz").write_bytes(b"half of it")
    with pytest.raises(FaustnetError, match=r"damaged or incomplete.*save it as") as error:
        fetch([f"{address}file.gz"], md5(b"half of it, and the rest"), tmp_path / "raw/file.gz")
    assert str(tmp_path / "raw/file.gz") in str(error.value)
    assert list((tmp_path / "raw").iterdir()) == []


def test_two_that_want_one_file_fetch_it_once_and_clear_what_a_killed_download_has_left(tmp_path: Path) -> None:
    asked, served = [], b"all of it"
    (tmp_path / ".file.gz.abc.part").write_bytes(b"half")
    (tmp_path / ".other.gz.abc.part").write_bytes(b"of another file, which may be under way")

    class Counting(Quiet):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(served)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    address = f"http://127.0.0.1:{server.server_port}/file.gz"
    wanting = partial(fetch, [address], md5(served), tmp_path / "file.gz")
    threads = [threading.Thread(target=server.serve_forever), *(threading.Thread(target=wanting) for _ in range(4))]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    server.shutdown()
    threads[0].join()
    server.server_close()
    assert asked == ["/file.gz"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.gz.abc.part", "file.gz"]


def test_a_server_that_speaks_nonsense_is_a_reason_like_any_other(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"good morning\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/file"
        with pytest.raises(FaustnetError, match="could not be downloaded"):
            fetch([address], "0", tmp_path / "file")
        thread.join()


def test_without_a_network_the_error_says_which_file_to_put_where(tmp_path: Path) -> None:
    unreachable = replace(mnist, mirrors=("http://127.0.0.1:1/",))
    with pytest.raises(FaustnetError, match=r"train-images-idx3-ubyte.gz could not be downloaded .*refused") as error:
        unreachable(tmp_path)
    assert str(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz") in str(error.value)


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_cifar_is_unpacked_from_its_archive_and_nothing_else_is(served: tuple[Path, str], tmp_path: Path) -> None:
    batch = pickle.dumps(batch_content(), protocol=2)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch", "batches.meta"]
    content = archive({f"cifar-10-batches-py/{name}": batch for name in names} | {"../escaped": b"x", "other": b"x"})
    (served[0] / "cifar.tar.gz").write_bytes(content)
    (tmp_path / "data/.cifar-10-batches-py.abc.part").mkdir(parents=True)  # as an unpacking that was killed leaves it
    data = cifar10(tmp_path / "data", f"{served[1]}cifar.tar.gz", md5(content))
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert data.train.shape == (3, 32, 32)
    assert sorted(path.name for path in (tmp_path / "data/cifar-10-batches-py").iterdir()) == sorted(names)
    assert not (tmp_path / "escaped").exists()
    assert not list((tmp_path / "data").glob(".*"))


def test_an_archive_without_the_batches_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    content = archive({"cifar-10-batches-py/data_batch_1": b"x"})
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(content)
    with pytest.raises(FaustnetError, match=r"data_batch_2.*delete it and run the command again"):
        cifar10(tmp_path, md5=md5(content))
    with pytest.raises(FaustnetError, match=r"its checksum is wrong.*delete it and run the command again"):
        cifar10(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-python.tar.gz"]


def test_the_real_files_hold_what_was_published(large_data: Path) -> None:
    digits = load_data("mnist", large_data)
    assert torch.bincount(digits.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    photographs = load_data("cifar10", large_data)
    mean = photographs.train.pixels.float().mean((0, 2, 3)) / 255
    torch.testing.assert_close(mean, torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4, rtol=0)
    assert torch.bincount(photographs.train.labels).tolist() == [5000] * 10
