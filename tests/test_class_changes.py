"""Classes that come and go: added at once, improved, renamed, removed, and all of it undone."""

import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from conftest import Answer
from faustnet import FaustClassifier, change_model
from faustnet.data import DataSet, Images, load_data
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS, Faust
from faustnet.nn.references import REFERENCE_KINDS
from faustnet.reproduce.worker import StoppableProgress
from faustnet.runs import changing, class_history
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import held_out_images, train
from faustnet.runs.tensor_file import ABOUT, CHECKSUM, pack, unpack
from faustnet.system.locks import folder_lock
from faustnet.training.evaluation import all_embeddings
from processes import COMMAND, Program

Command = Callable[..., Answer]
FAUST = [name for name, method in METHODS.items() if issubclass(method, Faust)]
NAMES = [*FAUST, "several"]


def trained(name: str, folder: Path, **options: object) -> Run:
    table = {
        "method": name,
        "options": options,
        "network": {"widths": [32, 24], "embedding": 16},
        "training": {"epochs": 1, "batch_size": 64, "validation": 200},
    }
    progress = StoppableProgress()
    return train(recipe_from(table), folder, device=torch.device("cpu"), progress=progress, data=load_data("digits"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Of all digits, by every method of FAUST, one of them also with several references, and by backprop."""
    folder = tmp_path_factory.mktemp("runs")
    found = {name: trained(name, folder / name) for name in [*FAUST, "backprop"]}
    return {**found, "several": trained("faust-representative", folder / "several", representatives=4)}


@pytest.fixture
def run(runs: dict[str, Run], tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(runs["faust-representative"].folder, tmp_path / "run")


@pytest.fixture
def pixels() -> torch.Tensor:
    """Images of no digit, which differ."""
    return torch.randint(256, (12, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_data_may_have_the_old_name_of_a_renamed_class_that_was_added(runs: dict[str, Run], pixels: torch.Tensor) -> None:
    labels = torch.tensor([0, 1] * 6)
    data = DataSet("new", ("3", "cross"), Images(pixels, labels), Images(pixels, labels))
    model = Model.load(runs["faust-representative"].folder / "model.safetensors").add_class("cross", pixels)
    renamed = Model.from_bytes(model.rename_class("cross", "plus").rename_class("plus", "sum").to_bytes())
    assert renamed.known(data).test.labels.unique().tolist() == [3, 10]
    assert renamed.undo_classes().known(data).test.labels.unique().tolist() == [3, 10]
    again = renamed.add_class("cross", pixels)
    assert again.known(data).test.labels.unique().tolist() == [3, 11], "a present name has precedence"
    again = model.remove_class("3").add_class("3", pixels).rename_class("3", "three")
    assert again.known(data).test.labels.unique().tolist() == [9], "images of the trained class were removed"
    again = model.rename_class("3", "three").add_class("3", pixels).rename_class("3", "third")
    assert again.known(data).test.labels.unique().tolist() == [3, 10], "the training data have precedence"
    with pytest.raises(FaustnetError, match="must have only classes of the model"):
        renamed.remove_class("sum").known(data)


def assert_same(one: Model, other: Model) -> None:
    assert one.class_names == other.class_names
    ours, theirs = one.method.state_dict(), other.method.state_dict()
    for key, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[key], msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", NAMES)
def test_classes_added_at_once_are_those_added_one_by_one(
    name: str, runs: dict[str, Run], pixels: torch.Tensor, digits: DataSet
) -> None:
    model = runs[name].model()
    parts = {"a": pixels[:1], "b": pixels[1:8], "c": pixels[8:]}
    together, one_by_one = model.add_classes(parts), model
    for new, own in parts.items():
        one_by_one = one_by_one.add_class(new, own)
    assert_same(together, one_by_one)
    torch.testing.assert_close(together.scores(digits.test.pixels)[..., :10], model.scores(digits.test.pixels))
    assert [(one.number, one.learned, one.images) for one in together.classes[9:]] == [
        (9, True, 0), (10, False, 1), (11, False, 7), (12, False, 4)
    ]  # fmt: skip
    assert {one.references for one in together.classes} == {4 if name == "several" else 1}


@pytest.mark.parametrize("kind", REFERENCE_KINDS)
@pytest.mark.parametrize("name", ["several", "faust-prototype", "faust-centroid"])
def test_a_class_with_more_images_is_the_class_from_all_images(
    name: str, kind: str, runs: dict[str, Run], pixels: torch.Tensor
) -> None:
    model = runs[name].model()
    whole = model.add_class("new", pixels, kind)
    grown = Model.from_bytes(model.add_class("new", pixels[:2], kind).to_bytes()).add_images("new", pixels[2:3])
    assert_same(Model.from_bytes(grown.to_bytes()).add_images("new", pixels[3:]), whole)
    assert grown.classes[-1].images == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_learned_reference_moves_by_a_fixed_share(name: str, runs: dict[str, Run], pixels: torch.Tensor) -> None:
    model = runs[name].model()
    grown = model.add_images("3", pixels)
    assert_same(model.add_images("3", pixels[:5]).add_images("3", pixels[5:]), grown)
    embedded = all_embeddings(model.method, model.source(model.images(pixels)))
    for old, new, rows in zip(model.method.references, grown.method.references, embedded, strict=True):
        assert torch.equal(new[[0, 1, 2, 4, 5, 6, 7, 8, 9]], old[[0, 1, 2, 4, 5, 6, 7, 8, 9]])
        for before, after in zip(old[3], new[3], strict=True):
            expected = 0.97 * before + 0.03 * sum(rows) / 12
            if name == "faust-prototype":  # a direction, because lengths of prototypes are learned
                mean = rows.mean(dim=0)
                direction = 0.97 * before / before.norm() + 0.03 * mean / mean.norm()
                expected = direction / direction.norm() * before.norm()
            torch.testing.assert_close(after, expected)
    images = dict(model.method.named_buffers()).get("images")
    assert images is None or torch.equal(dict(grown.method.named_buffers())["images"], images), "the representatives stay"
    assert grown.classes[3] == replace(model.classes[3], images=12)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_class_the_others_have_the_same_scores(name: str, runs: dict[str, Run], digits: DataSet) -> None:
    model = runs[name].model()
    left = model.remove_class("4").remove_class("0")
    others = [1, 2, 3, 5, 6, 7, 8, 9]
    test = digits.test.pixels
    assert left.class_names == tuple(map(str, others))
    torch.testing.assert_close(left.scores(test), model.scores(test)[..., others])
    expected = [left.class_names[best] for best in left.method.joined(left.scores(test)).argmax(dim=1).tolist()]
    assert [one.class_name for one in left.predict_early(test, float("inf"))] == expected
    while len(left.class_names) > 1:
        left = left.remove_class(left.class_names[0])
    assert {one.class_name for one in left.predict(test)} == {"9"}
    with pytest.raises(FaustnetError, match="must keep at least one class, and '9' is its last one"):
        left.remove_class("9")


@pytest.mark.parametrize("name", NAMES)
def test_every_change_can_be_undone_even_after_it_was_stored(
    name: str, runs: dict[str, Run], pixels: torch.Tensor, digits: DataSet
) -> None:
    model = runs[name].model()
    if name != "faust-prototype":  # which rejects nothing
        model = model.calibrate(digits.test.pixels)
    changes = [
        lambda model: model.add_classes({"a": pixels[:2], "b": pixels[2:4]}, "k-means"),
        lambda model: model.add_images("a", pixels[4:9]),
        lambda model: model.add_images("5", pixels[9:]),
        lambda model: model.rename_class("5", "five"),
        lambda model: model.add_images("five", pixels[:1]),
        lambda model: model.remove_class("five"),
        lambda model: model.remove_class("a"),
        lambda model: model.add_class("5", pixels[5:]),
    ]
    files = [model.to_bytes()]
    for change in changes:
        files.append(change(Model.from_bytes(files[-1])).to_bytes())
    assert len(set(files)) == len(files)
    while files:
        last = Model.from_bytes(files.pop())
        if files:
            assert last.undo_classes().to_bytes() == files[-1], last.class_history.changes[-1]
    with pytest.raises(FaustnetError, match="no change of the classes to undo"):
        last.undo_classes()
    assert last.threshold == model.threshold


def test_only_the_last_changes_are_kept(runs: dict[str, Run], pixels: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_history, "MOST_CHANGES", 2)
    model = runs["faust-centroid"].model()
    for number in range(3):
        model = model.add_class(f"new {number}", pixels[number : number + 1])
    assert model.undo_classes().undo_classes().class_names[10:] == ("new 0",)
    with pytest.raises(FaustnetError, match="no change of the classes to undo"):
        model.undo_classes().undo_classes().undo_classes()


def test_a_threshold_is_kept_while_it_is_valid(runs: dict[str, Run], pixels: torch.Tensor, digits: DataSet) -> None:
    model = runs["faust-representative"].model().calibrate(digits.test.pixels)
    assert model.rename_class("3", "three").threshold == model.threshold
    for changed in (model.remove_class("3"), model.add_images("3", pixels), model.add_classes({"new": pixels})):
        with pytest.raises(FaustnetError, match="run 'faustnet calibrate RUN'"):
            changed.predict(pixels, reject=True)
        assert changed.undo_classes().threshold == model.threshold
    later = model.rename_class("3", "three").calibrate(digits.test.pixels, 0.5)
    assert later.undo_classes().threshold == later.threshold, "a name has nothing to do with it"


def test_data_keep_their_names_and_removed_classes_have_no_column(
    faustnet: Command, run: Path, runs: dict[str, Run], digits: DataSet
) -> None:
    (before,) = json.loads(faustnet("evaluate", run, "--json", "--device", "cpu").out)
    assert faustnet("rename-class", run, "6", "six").code == 0
    (renamed,) = json.loads(faustnet("evaluate", run, "--json", "--device", "cpu").out)
    assert renamed["confusion"] == before["confusion"]
    assert renamed["class_names"] == [*"012345", "six", *"789"]
    assert Run(run).model_as_trained().class_names[6] == "six", "the metrics are still right"

    answer = faustnet("remove-class", run, "3")
    assert "now has 9 classes, without 3" in answer.out
    answer = faustnet("evaluate", run, "--json", "--early-exit", "--device", "cpu")
    (measured,) = json.loads(answer.out)
    gone = int((digits.test.labels == 3).sum())
    assert f"skipped: {gone} test images of classes that were removed from the model: '3'" in answer.err
    assert np.array(measured["confusion"]).shape == (9, 9)
    assert np.array(measured["confusion"]).sum() == 360 - gone == round(360 - gone)
    assert measured["class_names"] == [*"01245", "six", *"789"]
    assert "Classes were changed in the model" in faustnet("report", run).sentence
    assert faustnet("play", run).code == 0
    page = (run / "play.html").read_text()
    assert re.search(r'"classes":\["0","1","2","4","5","six","7","8","9"\]', page)

    assert "rejects 9 of these 180 images" in faustnet("calibrate", run, "--device", "cpu").out
    _, validation = digits.train.split(200, seed=0)
    kept = validation.labels != 3
    held_out = held_out_images(Run(run).model(), None, None).test
    assert torch.equal(held_out.pixels, validation.pixels[kept]), "no image of the training"
    found = [Run(run).model().class_names[number] for number in held_out.labels.tolist()]
    assert found == ["six" if number == 6 else str(number) for number in validation.labels[kept].tolist()]


def test_as_many_classes_as_before_are_not_those_of_the_metrics(
    runs: dict[str, Run], pixels: torch.Tensor, run: Path
) -> None:
    model = runs["faust-representative"].model()
    for changed in (model.remove_class("3").add_class("new", pixels), model.add_images("3", pixels)):
        (run / "model.safetensors").write_bytes(changed.to_bytes())
        with pytest.raises(FaustnetError, match="Classes were changed in the model"):
            Run(run).model_as_trained()
    (run / "model.safetensors").write_bytes(model.add_images("3", pixels).undo_classes().to_bytes())
    assert Run(run).model_as_trained().class_names == model.class_names


def test_other_methods_have_names_only(runs: dict[str, Run], pixels: torch.Tensor) -> None:
    model = runs["backprop"].model()
    renamed = Model.from_bytes(model.rename_class("3", "three").to_bytes())
    assert [one.name for one in renamed.classes if one.references is None][3] == "three"
    assert renamed.undo_classes().to_bytes() == model.to_bytes()
    for change in (
        lambda: model.add_classes({"new": pixels}),
        lambda: model.add_images("3", pixels),
        lambda: model.remove_class("3"),
    ):
        with pytest.raises(FaustnetError, match="needs a FAUST model, got backprop: train with a method such as"):
            change()


def class_folders(folder: Path, pixels: torch.Tensor) -> Path:
    """One image of each class, twice as large as those of the model, and one that is not an image."""
    for number, image in enumerate(pixels):
        (folder / f"class {number}").mkdir(parents=True)
        Image.fromarray(image[0].numpy()).resize((16, 16)).save(folder / f"class {number}" / "a.png")
    (folder / "class 0" / "notes.txt").write_text("not an image")
    return folder


def test_a_folder_of_classes_is_added_by_one_command_and_undone_by_another(
    faustnet: Command, run: Path, pixels: torch.Tensor, tmp_path: Path
) -> None:
    file, folder = run / "model.safetensors", class_folders(tmp_path / "new", pixels)
    as_it_was = file.read_bytes()
    answer = faustnet("add-classes", run, folder, "--device", "cpu")
    assert answer.code == 0
    assert "now has 22 classes; 12 were added from 12 images." in answer.out
    assert "skipped: 1 files whose suffix is not that of an image" in answer.err
    found = json.loads(faustnet("predict", run, folder, "--json", "--device", "cpu").out)
    assert all(Path(entry["file"]).parent.name == entry["class_name"] for entry in found)

    more = folder / "class 7" / "a.png"
    answer = faustnet("add-images", run, "class 8", more, "--device", "cpu")
    assert "class class 8 now has 2 added images" in answer.out
    assert "Predictions for the 1 examples of class 8, before: class 7 (1); now: " in answer.out
    about = json.loads(faustnet("classes", run, "--json").out)
    assert about["classes"][20] == {"number": 20, "name": "class 8", "references": 1, "learned": False, "images": 2}
    assert about["changes"] == [
        "add 12 classes ('class 0', 'class 1', 'class 10', …) from 12 images", "add 1 image to class 'class 8'"
    ]  # fmt: skip
    table = faustnet("classes", run).out
    assert re.search(r"^ *20 +class 8 +1 +added +2 *$", table, re.MULTILINE)
    assert re.search(r"^ *3 +3 +1 +learned +– *$", table, re.MULTILINE)
    assert "Last of 2 changes: add 1 image to class 'class 8'. To undo it, run: faustnet undo-classes" in table
    aside = tmp_path / "aside.safetensors"
    assert faustnet("remove-class", run, "class 8", "--out", aside).code == 0
    assert faustnet("rename-class", aside, "class 9", "nine").code == 0, "a model file is as good as a run"
    assert "nine" in Model.load(aside).class_names

    assert "Undone: add 1 image to class 'class 8'." in faustnet("undo-classes", run).out
    assert "now has 10 classes" in faustnet("undo-classes", run).out
    assert file.read_bytes() == as_it_was
    assert "no change of the classes to undo" in faustnet("undo-classes", run).sentence


def test_bad_input_changes_nothing(
    faustnet: Command, run: Path, runs: dict[str, Run], pixels: torch.Tensor, tmp_path: Path
) -> None:
    file, folder = run / "model.safetensors", class_folders(tmp_path / "new", pixels[:3])
    as_it_was = file.read_bytes()
    image = folder / "class 0" / "a.png"
    taken, empty, loose, bad, split = (shutil.copytree(folder, tmp_path / name) for name in ("t", "e", "l", "b", "s"))
    for name in ("3", "7"):
        shutil.copytree(taken / "class 0", taken / name)
    (empty / "nothing").mkdir()
    shutil.copy(image, loose)
    (bad / "class 1" / "b.png").write_bytes(b"not an image")
    (split / "train").mkdir()
    shutil.move(split / "class 0", split / "train")
    (tmp_path / "none").mkdir()
    for words, sentence in (
        (("add-classes", taken), "The model already has classes '3', '7': choose other names."),
        (("add-classes", empty), f"{empty / 'nothing'} contains no image: add some, or remove the folder."),
        (("add-classes", loose), f"{loose / 'a.png'} is not in the folder of a class: move it into one"),
        (("add-classes", bad), "b.png is not a readable image"),
        (("add-classes", split), f"{split / 'train'} has only folders"),
        (("add-classes", tmp_path / "none"), "a folder of images for each of at least one class, got 0"),
        (("add-classes", image), "is not a folder: give a folder that contains a folder of images for each class"),
        (("add-images", "eight", image), "There is no class 'eight': choose 0, 1, 2, 3, 4, 5, 6, 7, 8, 9."),
        (("add-images", "8"), "Give either image files or texts with --text, got neither."),
        (("add-images", "8", "--text", "eight"), "was trained on images, not on texts"),
        (("add-images", "8", tmp_path / "none"), "contains no image"),
        (("remove-class", "33"), "There is no class '33': did you mean 3?"),
        (("rename-class", "8", "3"), "The model already has a class '3': choose another name."),
        (("rename-class", "8", " "), "name of the new class must not be empty, got ' '"),
        (("rename-class", "8", "unknown"), "must not be named 'unknown', the prediction for rejected images"),
        (("rename-class", "eigth", "9"), "There is no class 'eigth'"),
        (("undo-classes",), "There is no change of the classes to undo."),
        (("remove-class", "8", "--out", tmp_path / "nowhere/model"), "could not be written"),
    ):
        answer = faustnet(words[0], run, *words[1:])
        assert answer.code == 2, words
        assert sentence in answer.sentence, words
        assert "Traceback" not in answer.err
    assert file.read_bytes() == as_it_was
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert "needs a FAUST model" in faustnet("add-classes", runs["backprop"].folder, folder).sentence
    assert "is not a run" in faustnet("remove-class", tmp_path, "3").sentence
    with pytest.raises(FaustnetError, match="examples must contain at least one class, got none"):
        Run(run).model().add_classes({})
    with pytest.raises(FaustnetError, match="examples must be a dictionary of class names with the pixels of each class"):
        Run(run).model().add_classes([pixels])  # type: ignore[arg-type]
    with pytest.raises(FaustnetError, match="at least one example of 'b', got none"):
        Run(run).model().add_classes({"a": pixels, "b": pixels[:0]})
    with pytest.raises(FaustnetError, match="must be images of 1×8×8 for this model, got images of 1×9×9"):
        Run(run).model().add_images("3", torch.zeros(2, 1, 9, 9, dtype=torch.uint8))


def test_a_change_waits_for_nobody_and_is_refused_while_another_is_made(faustnet: Command, run: Path) -> None:
    as_it_was = (run / "model.safetensors").read_bytes()
    with folder_lock(run):
        same = run / ".." / run.name / "model.safetensors"  # the run's own model, by another path
        for words in (
            ("remove-class", run, "3"),
            ("remove-class", run, "3", "--out", same),
            ("undo-classes", run),
            ("calibrate", run),
        ):
            answer = faustnet(*words)
            assert answer.code == 2
            assert f"{run} is in use by process" in answer.sentence
        assert faustnet("classes", run).code == 0
    assert (run / "model.safetensors").read_bytes() == as_it_was


def test_no_change_of_several_commands_at_once_is_lost(run: Path) -> None:
    programs = {name: Program(COMMAND, "rename-class", run, name, f"{name} new") for name in "0123"}
    answers = {name: program.communicate(timeout=60) for name, program in programs.items()}
    done = {name for name, program in programs.items() if program.returncode == 0}
    assert done
    assert all("in use by" in err for name, (_, err) in answers.items() if name not in done)
    expected = tuple(f"{name} new" if name in done else name for name in "0123456789")
    assert Run(run).model().class_names == expected


def test_another_file_is_written_under_the_lock_of_its_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, steps = tmp_path / "other.safetensors", []

    @contextmanager
    def lock(folder: Path, *, wait: float = 0) -> Iterator[None]:
        assert not out.exists()
        yield
        assert out.exists()
        steps.append((folder, wait))

    monkeypatch.setattr(changing, "folder_lock", lock)
    changing.change_stored_model(run, lambda model: model.rename_class("3", "three"), torch.device("cpu"), out)
    assert steps == [(tmp_path, changing.PATIENCE)]
    assert "three" in Model.load(out).class_names


def test_a_model_that_is_a_symbolic_link_is_replaced_under_the_lock_of_its_own_folder(run: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "model.safetensors").symlink_to(run / "model.safetensors")
    as_it_was = (run / "model.safetensors").read_bytes()

    def changed(model: Model) -> Model:
        return model.rename_class("3", "three")

    with folder_lock(linked), pytest.raises(FaustnetError, match=f"{linked} is in use by"):
        changing.change_stored_model(linked / "model.safetensors", changed, torch.device("cpu"))
    with folder_lock(run):  # which is not written to
        changing.change_stored_model(linked / "model.safetensors", changed, torch.device("cpu"))
    assert "three" in Model.load(linked / "model.safetensors").class_names
    assert (run / "model.safetensors").read_bytes() == as_it_was


def test_a_folder_that_stays_in_use_is_refused_for_other_files(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faustnet: Command
) -> None:
    monkeypatch.setattr(changing, "PATIENCE", 0)
    with folder_lock(tmp_path):
        answer = faustnet("rename-class", run, "3", "three", "--out", tmp_path / "other")
    assert answer.code == 2
    assert f"{tmp_path} is in use by process" in answer.sentence
    assert not (tmp_path / "other").exists()


def test_an_error_in_a_change_leaves_the_file_as_it_was(run: Path, tmp_path: Path) -> None:
    as_it_was = (run / "model.safetensors").read_bytes()

    def fails(model: Model) -> Model:
        model.remove_class("3")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_model(run, fails)
    with pytest.raises(FaustnetError, match="change must return the changed model, got NoneType: return the result of"):
        change_model(run, lambda model: None)  # type: ignore[arg-type, return-value]
    assert (run / "model.safetensors").read_bytes() == as_it_was
    changed = change_model(run, lambda model: model.remove_class("3"), out=tmp_path / "other")
    assert (run / "model.safetensors").read_bytes() == as_it_was
    assert Model.load(tmp_path / "other").class_names == changed.class_names
    change_model(run, lambda model: model.rename_class("3", "three"), device="cpu")
    assert Run(run).model().class_names[3] == "three"


def test_a_history_that_does_not_fit_is_refused(runs: dict[str, Run], pixels: torch.Tensor) -> None:
    """Even with a right checksum."""
    model = runs["faust-representative"].model()
    model = model.add_class("a", pixels[:3], "k-means").add_images("5", pixels).remove_class("4")
    metadata, tensors = unpack(model.to_bytes())

    def repacked(change: Callable[[dict], object], **others: torch.Tensor) -> bytes:
        about = json.loads(metadata[ABOUT])
        del about[CHECKSUM]
        change(about["classes"])
        return pack(tensors | {name.replace("__", "."): tensor for name, tensor in others.items()}, about)

    assert Model.from_bytes(repacked(lambda about: None)).to_bytes() == model.to_bytes()
    for change in (
        lambda about: about["examples"].pop(),
        lambda about: about["kinds"].__setitem__(0, "median"),
        lambda about: about["examples"].__setitem__(-1, 4),
        lambda about: about["examples"].__setitem__(-1, -3),
        lambda about: about["examples"].__setitem__(0, 1),
        lambda about: about["trained_as"].__setitem__(0, 7),
        lambda about: about.pop("removed"),
        lambda about: about["changes"][0].update(action="grow"),
        lambda about: about["changes"][0].update(names=[]),
        lambda about: about["changes"][1].update(number=-1),
        lambda about: about["changes"][1].update(record=None),
        lambda about: about["changes"][2].update(record=["4", 1, "mean"]),
        lambda about: about["changes"].insert(0, about["changes"][2]),
        lambda about: about.update(changes=3),
    ):
        with pytest.raises(FaustnetError, match="is not a faustnet model, or is damaged"):
            Model.from_bytes(repacked(change))
    for name in ("classes__0", "changes__2__rows__references.layer_0"):
        with pytest.raises(FaustnetError, match="is not a faustnet model, or is damaged"):
            Model.from_bytes(repacked(lambda about: None, **{name: torch.full((4, 16), float("nan"))}))
    outside = Model.from_bytes(repacked(lambda about: about["changes"][2].update(number=99)))
    with pytest.raises(FaustnetError, match="does not match the classes of the model: it cannot be undone"):
        outside.undo_classes()


@pytest.mark.parametrize("network", [None, lambda x: [torch.nn.Linear(64, 30), torch.nn.Linear(30, 20)]])
def test_the_classes_of_the_estimator_come_and_go(network: Callable | None) -> None:
    X, y = load_digits(return_X_y=True)
    few = y < 4
    known = FaustClassifier(random_state=0, epochs=3, network=network).fit(X[few], y[few])
    before = known.decision_function(X)
    assert known.add_classes(X[~few][:60], y[~few][:60]) is known
    assert known.classes_.tolist() == list(range(10))
    np.testing.assert_allclose(known.decision_function(X)[:, :4], before, rtol=1e-4)
    at_once = FaustClassifier(random_state=0, epochs=3, network=network).fit(X[few], y[few]).add_class(7, X[y == 7])
    known.add_samples(7, X[y == 7][len(X[~few][:60][y[~few][:60] == 7]) :])
    np.testing.assert_allclose(known.decision_function(X)[:, 7], at_once.decision_function(X)[:, 4], rtol=1e-4)
    if network is None:
        known = pickle.loads(pickle.dumps(known))
    assert known.rename_class(2, 22).remove_class(0).classes_.tolist() == [1, 22, 3, 4, 5, 6, 7, 8, 9]
    np.testing.assert_allclose(known.decision_function(X)[:, :3], before[:, 1:], rtol=1e-4)
    assert set(known.predict(X[few])) <= set(known.classes_)
    for change, sentence in (
        (lambda: known.remove_class(0), "There is no class '0'"),
        (lambda: known.remove_class("1"), "name must be of type int64, like the other labels, got '1'"),
        (lambda: known.rename_class(1, "one"), "new must be of type int64"),
        (lambda: known.rename_class(1, 22), "already has a class '22'"),
        (lambda: known.add_classes(X[:3], y[:2]), "y must have one label per sample, got 3 samples and 2 labels"),
        (lambda: known.add_classes(X[:3], list("abc")), "y must be of type int64"),
    ):
        with pytest.raises((FaustnetError, ValueError), match=sentence):
            change()
    assert known.undo_classes().undo_classes().undo_classes().classes_.tolist() == list(range(10))
    assert known.undo_classes().classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(known.decision_function(X), before)
    with pytest.raises(FaustnetError, match="no change of the classes to undo"):
        known.undo_classes()
