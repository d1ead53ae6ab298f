"""Where the classes of a model come from: learned or added, from how many images, and the changes that can be undone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from faustnet.nn.references import REFERENCE_KINDS

LEARNED_SHARE = 0.03  # of added images in a learned reference, however many they are: results/learned-references.json
MOST_CHANGES = 100  # changes that can be undone; older ones are dropped
ADD, ADD_IMAGES, RENAME, REMOVE = ACTIONS = ("add", "add-images", "rename", "remove")
SHOWN = 3  # names in the description of a change


@dataclass(frozen=True)
class ClassInfo:
    """One class of a model."""

    number: int  # label of the class, from 0
    name: str
    references: int | None  # per layer; None if the method has no references
    learned: bool  # in training; otherwise added later
    images: int  # that were added after training


@dataclass(frozen=True)
class ClassRecord:
    """What is needed to compute the references of one class again when it gets more examples."""

    trained_as: str | None  # name in the training data; None if the class was added later
    examples: int = 0  # images that were added after training
    kind: str = REFERENCE_KINDS[0]
    kept: tuple[Tensor, ...] = ()  # in each layer, (rows, e_i) on the CPU; see `kept_rows`

    def kept_rows(self, count: int) -> int:
        """Return the number of rows that are kept in each layer, for `count` references per class.

        They are the sum of the embeddings, followed by the references of a learned class before the first images were added;
        or all embeddings for "k-means", or the first ones for "examples".
        """
        if self.trained_as is not None:
            return 1 + count if self.examples else 0
        return {"mean": 1, "k-means": self.examples, "examples": min(self.examples, count)}[self.kind]


@dataclass(frozen=True)
class Change:
    """A change of the classes, with the state before it."""

    action: str  # one of ACTIONS
    names: tuple[str, ...]  # of the classes that were changed; of a renamed class, the old and the new name
    number: int  # of the first of these classes
    examples: int = 0  # images that were given
    threshold: float | None = None  # of rejection, before
    record: ClassRecord | None = None  # of the class before it got images or was removed
    rows: Mapping[str, Tensor] = field(default_factory=dict)  # its rows of the method's tensors then, on the CPU

    def __str__(self) -> str:
        images = f"{self.examples} image{'' if self.examples == 1 else 's'}"
        if self.action == RENAME:
            return f"rename class {self.names[0]!r} to {self.names[1]!r}"
        if self.action == REMOVE:
            return f"remove class {self.names[0]!r}"
        if self.action == ADD_IMAGES:
            return f"add {images} to class {self.names[0]!r}"
        if len(self.names) == 1:
            return f"add class {self.names[0]!r} from {images}"
        some = ", ".join(map(repr, self.names[:SHOWN])) + (", …" if len(self.names) > SHOWN else "")
        return f"add {len(self.names)} classes ({some}) from {images}"


@dataclass(frozen=True)
class ClassHistory:
    """Records of all classes of a model, and the changes since its training."""

    records: tuple[ClassRecord, ...]
    removed: tuple[str, ...] = ()  # names in the training data of removed classes
    changes: tuple[Change, ...] = ()

    @classmethod
    def of_trained(cls, class_names: Sequence[str]) -> "ClassHistory":
        """Return the history of a model without changes."""
        return cls(tuple(ClassRecord(name) for name in class_names))

    def unless_trained(self, class_names: Sequence[str]) -> "ClassHistory | None":
        """Return None if this is the history of a model without changes, and otherwise itself."""
        names = [record.trained_as for record in self.records]
        return None if self.as_trained and not self.changes and names == list(class_names) else self

    @property
    def as_trained(self) -> bool:
        """Whether the references are those of the training. Classes may have other names."""
        return not self.removed and all(record.trained_as is not None and not record.examples for record in self.records)

    def renamed(self, class_names: Sequence[str]) -> dict[str, str]:
        """Return the present names of the classes that have another name in the training data, or had another one when they
        were added, by that name. An added class does not take over a name of the training data."""
        pairs, added_as = list(zip(self.records, class_names, strict=True)), self._names_before()
        added = {added_as.get(name, name): name for record, name in pairs if record.trained_as is None}
        trained = {record.trained_as: name for record, name in pairs if record.trained_as is not None}
        found = {old: name for old, name in added.items() if old not in self.removed} | trained
        return {old: name for old, name in found.items() if old != name}

    def _names_before(self) -> dict[str, str]:
        """Return the first names of the classes that were renamed, as far as the changes contain them, by present name."""
        found: dict[str, str] = {}
        for change in self.changes:
            if change.action == RENAME:
                old, new = change.names
                found[new] = found.pop(old, old)
            elif change.action == REMOVE:
                found.pop(change.names[0], None)
        return found

    def noted(self, change: Change) -> tuple[Change, ...]:
        """Return the changes with another one at the end."""
        return (*self.changes, change)[-MOST_CHANGES:]
