"""How each layer's map of the test images forms during training: train a recipe, record embeddings, map and draw them."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faustnet.data import DataSet, Images
from faustnet.errors import FaustnetError
from faustnet.report.animation import draw_gif, draw_svg
from faustnet.report.figures import drawing
from faustnet.reproduce.results import writing_to
from faustnet.runs.analysis import PERPLEXITY, balanced_sample, fisher_score, layer_embeddings, tsne
from faustnet.runs.folder import RECIPE
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, as_table, recipe_from
from faustnet.runs.session import Progress, train
from faustnet.system.files import write_whole
from faustnet.training.history import Epoch
from faustnet.training.loop import TrainingLoop

POINTS = 200  # test images in a map, equally many of each class
FRAMES = 12  # maps of a layer, at most
SIDE = 1000  # maps are stored with whole numbers from 0 to SIDE


def draw_animation(out: Path, recipe: Recipe, device: torch.device, data_dir: Path | None, progress: Progress) -> list[Path]:
    """Train a recipe and draw the animation as SVG and GIF; the points are in OUT/animation.json."""
    path, folder, frames = out / "animation.json", out / "animation.run", out / "animation.frames"
    with writing_to(out):  # fails now if the folder is not writable
        pass
    with drawing():
        if not path.exists():
            recorder = Recorder(frames, recipe.training.epochs, progress)
            begun = (folder / RECIPE).exists()
            run = train(recipe, folder, device=device, progress=recorder, data_dir=data_dir, resume=begun)
            facts = {
                "dataset": run.recipe.dataset,
                "method": run.recipe.method,
                "class_names": list(run.model().class_names),
                **maps_of(frames),
                "recipe": as_table(recipe),
                "environment": run.environment,
            }
            write_whole(path, (json.dumps(facts) + "\n").encode())
            for temporary in (folder, frames):
                shutil.rmtree(temporary, ignore_errors=True)
        facts = _facts(path)
        if recipe_from(facts["recipe"]) != recipe:
            raise FaustnetError(f"{path} was made with another recipe: move or delete it, or choose another --out.")
        figures = out / "figures"
        figures.mkdir(exist_ok=True)
        written = {figures / "animation.svg": draw_svg(facts).encode(), figures / "animation.gif": draw_gif(facts)}
    for file, content in written.items():
        write_whole(file, content)
    return list(written)


def frame_epochs(epochs: int) -> list[int]:
    """Return the epochs to draw: 0, before training, and all others, or fewer and fewer of them if there are many."""
    if epochs < FRAMES:
        return list(range(epochs + 1))
    return [0, *np.unique(np.geomspace(1, epochs, FRAMES - 1).round().astype(int)).tolist()]


class Recorder:
    """Writes the embeddings of some test images after some epochs into a folder, and passes all events on."""

    def __init__(self, folder: Path, epochs: int, other: Progress):
        self.folder, self.epochs, self.other = folder, set(frame_epochs(epochs)), other

    def begin(self, model: Model, data: DataSet, trainer: TrainingLoop) -> None:
        labels = data.test.labels.cpu().numpy()
        self.model, self.images = model, data.test.take(torch.from_numpy(balanced_sample(labels, POINTS)))
        done = len(trainer.history)
        if not done and not trainer.batch:
            shutil.rmtree(self.folder, ignore_errors=True)  # of a training that could not be continued
        self.folder.mkdir(parents=True, exist_ok=True)
        if not trainer.batch and not self._file(done).exists():  # also if this process was killed before it was written
            self._record(done)
        self.other.begin(model, data, trainer)

    def batch(self) -> None:
        self.other.batch()

    def epoch(self, epoch: Epoch) -> None:
        self._record(epoch.epoch)
        self.other.epoch(epoch)

    def end(self) -> None:
        self.other.end()

    def _file(self, epoch: int) -> Path:
        return self.folder / f"{epoch}.npz"

    def _record(self, epoch: int) -> None:
        if epoch in self.epochs:
            write_frame(self._file(epoch), self.model, self.images)


def write_frame(path: Path, model: Model, images: Images) -> None:
    """Write the labels of images and their embeddings in each layer."""
    layers = {f"layer{number}": rows for number, rows in enumerate(layer_embeddings(model, images))}
    partial = path.with_suffix(".part.npz")
    np.savez(partial, labels=images.labels.cpu().numpy(), allow_pickle=False, **layers)
    partial.replace(path)


def maps_of(folder: Path) -> dict[str, Any]:
    """Return the epochs, the labels, and the maps and Fisher scores of each layer, from the recorded embeddings."""
    epochs = sorted(int(path.stem) for path in folder.glob("*.npz") if path.stem.isdigit())
    frames = [dict(np.load(folder / f"{epoch}.npz")) for epoch in epochs]
    labels = frames[0]["labels"]
    layers = []
    for number in range(len(frames[0]) - 1):
        rows = [frame[f"layer{number}"] for frame in frames]
        layers.append(
            {
                "fisher": [round(min(fisher_score(one, labels), 1e6), 4) for one in rows],
                "points": [one.tolist() for one in linked_maps(rows)],
            }
        )
    return {"epochs": epochs, "labels": labels.tolist(), "layers": layers}


def linked_maps(frames: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Map the embeddings of successive epochs to the plane. (n, e) each → (n, 2) each, from 0 to SIDE

    The last map is a t-SNE map. The optimisation of each earlier map starts from the next one, so that an image moves only
    as far as its neighbours change.
    """
    maps = [tsne(frames[-1])]
    for rows in reversed(frames[:-1]):
        maps.append(_moved(maps[-1], rows))
    return [_scaled(one) for one in reversed(maps)]


def _moved(start: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the t-SNE map of embeddings that is close to another map."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    rows = rows.astype(np.float64) - rows[:1]
    spread = np.abs(rows).max(initial=0.0)
    if len(rows) < 2 or spread == 0:
        return np.zeros((len(rows), 2))
    options: dict[str, Any] = {"perplexity": min(PERPLEXITY, (len(rows) - 1) / 3), "random_state": 0}
    with threadpool_limits(1):  # its threads wait for each other in every iteration
        step = TSNE(init=start.astype(np.float32), early_exaggeration=1.0, max_iter=250, **options)
        return step.fit_transform(rows / spread)


def _scaled(points: np.ndarray) -> np.ndarray:
    """Return the points in whole numbers, with their centre in the middle: the size of a t-SNE map has no meaning."""
    points = points - points.mean(axis=0)
    return np.round(SIDE / 2 * (1 + points / (np.abs(points).max() or 1.0))).astype(int)


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        shape = (len(facts["epochs"]), len(facts["labels"]), 2)
        if facts["recipe"] and all(np.shape(layer["points"]) == shape for layer in facts["layers"]) and facts["layers"]:
            return facts
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise FaustnetError(f"{path} is damaged: delete it and run the same command again.")
