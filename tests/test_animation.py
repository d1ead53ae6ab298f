"""`faustnet reproduce animation`: its maps are those of the epochs and move little, and an interrupted one is continued."""

import io
import json
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from conftest import Answer
from faustnet.report.animation import FIRST, LAST, SMOOTH, draw_gif, draw_svg, steps_of
from faustnet.reproduce import animation
from faustnet.reproduce.animation import Recorder, frame_epochs, linked_maps
from faustnet.runs.analysis import fisher_score, tsne
from faustnet.training.history import Epoch

Command = Callable[..., Answer]
POINTS, EPOCHS = 40, 3
SVG = "{http://www.w3.org/2000/svg}"
RECIPE = f"""
dataset = "digits"
network = {{widths = [24, 16], embedding = 12}}
training = {{epochs = {EPOCHS}, batch_size = 64}}
"""


@pytest.fixture(scope="module", autouse=True)
def _few_points() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(animation, "POINTS", POINTS)
        yield


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from faustnet.cli import main

    out = tmp_path_factory.mktemp("animation")
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "animation", "--recipe", str(recipe), "--out", str(out), "--device", "cpu"])
    assert not end.value.code
    return out


def facts_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "animation.json").read_text(encoding="utf-8"))


def test_there_is_a_map_of_every_layer_and_epoch(made: Path) -> None:
    facts = facts_of(made)
    assert facts["epochs"] == [0, 1, 2, 3]
    assert sorted(set(facts["labels"])) == list(range(10))
    assert [np.shape(layer["points"]) for layer in facts["layers"]] == [(4, POINTS, 2)] * 2
    for layer in facts["layers"]:
        assert layer["fisher"][-1] > 1.5 * layer["fisher"][0], "training separates the classes"
    assert sorted(path.name for path in made.iterdir() if path.name != ".lock") == ["animation.json", "figures"]


def test_every_point_of_the_svg_file_moves_along_its_maps(made: Path) -> None:
    facts, root = facts_of(made), ElementTree.parse(made / "figures" / "animation.svg").getroot()
    groups = root.findall(f"{SVG}g")
    assert len(groups) == 2
    for group, layer in zip(groups, facts["layers"], strict=True):
        circles = group.findall(f"{SVG}circle")
        assert len(circles) == POINTS
        for number, circle in enumerate(circles):
            for place, animate in enumerate(circle):
                values = [int(value) for value in animate.attrib["values"].split(";")]
                path = [points[number][place] for points in layer["points"]]
                assert values == [path[0]] * FIRST + path + [path[-1]] * LAST
                assert int(circle.attrib[animate.attrib["attributeName"]]) == path[-1], "without animation: the last epoch"


def test_one_epoch_at_a_time_is_named(made: Path) -> None:
    facts, root = facts_of(made), ElementTree.parse(made / "figures" / "animation.svg").getroot()
    texts = [text for text in root.findall(f"{SVG}text") if (text.text or "").startswith("epoch")]
    assert [text.text for text in texts] == ["epoch 0", "epoch 1", "epoch 2", "epoch 3"]
    shown = [text[0].attrib["values"].split(";") for text in texts]
    assert all(column.count("visible") == 1 for column in zip(*shown, strict=True))
    assert [names.index("visible") for names in shown] == [steps_of(facts).index(number) for number in range(4)]
    times = [float(time) for time in texts[0][0].attrib["keyTimes"].split(";")]
    assert times[0] == 0
    assert times == sorted(times)
    assert len(times) == len(shown[0])


def test_the_gif_file_ends_as_the_last_map(made: Path) -> None:
    with Image.open(made / "figures" / "animation.gif") as picture:
        assert picture.n_frames == EPOCHS * SMOOTH + 1
        assert picture.info["loop"] == 0
        first = np.asarray(picture.convert("RGB"), dtype=float)
        picture.seek(EPOCHS * SMOOTH)
        last = np.asarray(picture.convert("RGB"), dtype=float)
    facts = facts_of(made)
    only = {
        **facts,
        "epochs": [3],
        "layers": [{key: values[-1:] for key, values in layer.items()} for layer in facts["layers"]],
    }
    with Image.open(io.BytesIO(draw_gif(only))) as picture:
        still = np.asarray(picture.convert("RGB"), dtype=float)
    assert np.abs(last - still).mean() < 1
    assert np.abs(first - still).mean() > 5


def test_the_same_command_again_only_draws(made: Path, recipe: Path, faustnet: Command) -> None:
    before = (made / "figures" / "animation.svg").read_bytes()
    (made / "figures" / "animation.svg").unlink()
    answer = faustnet("reproduce", "animation", "--recipe", recipe, "--out", made, "--device", "cpu")
    assert (answer.code, answer.err) == (0, "")
    assert (made / "figures" / "animation.svg").read_bytes() == before


def test_an_interrupted_training_is_continued(
    made: Path, recipe: Path, faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("reproduce", "animation", "--recipe", recipe, "--out", tmp_path / "out", "--device", "cpu")
    whole = Recorder.epoch

    def interrupted(recorder: Recorder, epoch: Epoch) -> None:
        whole(recorder, epoch)
        if epoch.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "epoch", interrupted)
        answer = faustnet(*words)
    assert answer.code == 130
    assert "run the same command again to continue" in answer.sentence
    (tmp_path / "out" / "animation.frames" / "2.npz").unlink()  # as if the process had been killed before it was written
    answer = faustnet(*words)
    assert answer.code == 0
    assert "continuing after 2 epochs" in answer.err
    assert facts_of(tmp_path / "out")["layers"] == facts_of(made)["layers"]


def test_other_files_are_not_overwritten(made: Path, faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet("reproduce", "animation", "--out", made, "--device", "cpu")
    assert answer.code == 2
    assert "was made with another recipe: move or delete it, or choose another --out" in answer.sentence
    (tmp_path / "animation.json").write_text("{}")
    answer = faustnet("reproduce", "animation", "--out", tmp_path, "--device", "cpu")
    assert answer.code == 2
    assert "is damaged: delete it" in answer.sentence


def movement(maps: list[np.ndarray]) -> float:
    """Return how far images move from one map to the next, relative to the size of the maps."""
    sizes = [np.abs(one - one.mean(axis=0)).max() for one in maps]
    centred = [(one - one.mean(axis=0)) / size for one, size in zip(maps, sizes, strict=True)]
    return float(np.mean([np.linalg.norm(after - before, axis=1).mean() for before, after in pairwise(centred)]))


def test_images_move_little_between_similar_epochs() -> None:
    """Three clusters separate slowly; neighbouring maps of separate t-SNE runs would be rotated and mirrored."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    noise, centres = generator.normal(size=(60, 10)), 4 * generator.normal(size=(3, 10))
    frames = [noise + share * centres[labels] for share in np.linspace(0, 1, 5)]
    maps = linked_maps(frames)
    assert all(one.min() >= 0 and one.max() <= 1000 for one in maps)
    moved = movement([one / 1000 for one in maps])
    unlinked = movement([tsne(rows, seed) for seed, rows in enumerate(frames)])
    assert moved < 0.5 * unlinked
    assert fisher_score(maps[-1], labels) > 3 * fisher_score(maps[0], labels)


def test_images_that_are_all_alike_have_a_map() -> None:
    maps = linked_maps([np.ones((5, 3)), np.zeros((5, 3))])
    assert all((one == 500).all() for one in maps)


@pytest.mark.parametrize("epochs", [1, 11, 12, 60, 500])
def test_many_epochs_are_thinned_out(epochs: int) -> None:
    chosen = frame_epochs(epochs)
    assert chosen[0] == 0
    assert chosen[-1] == epochs
    assert chosen == sorted(set(chosen))
    assert len(chosen) == epochs + 1 if epochs < 12 else 8 < len(chosen) <= 12


def test_names_of_classes_are_only_shown(made: Path) -> None:
    facts = {**facts_of(made), "class_names": ["<script>", "a&b", *"23456789"]}
    root = ElementTree.fromstring(draw_svg(facts))
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert texts[-10:-8] == ["<script>", "a&b"]
