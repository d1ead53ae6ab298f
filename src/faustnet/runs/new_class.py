"""An additional class of a trained FAUST method, without training."""

from collections.abc import Sequence

import torch

from faustnet.data import ImageSource
from faustnet.errors import require
from faustnet.methods import Faust, Method
from faustnet.nn.references import references_from
from faustnet.runs.prediction import UNKNOWN
from faustnet.training.evaluation import all_embeddings


def check_new_class(name: str, present: Sequence[str]) -> None:
    """Refuse the name of a new class if it cannot be added to those that are present."""
    require(name not in present, f"The model already has a class {name!r}: choose another name.")
    require(bool(name.strip()), f"The name of the new class must not be empty, got {name!r}.")
    require(
        name != UNKNOWN,
        f"The new class must not be named {UNKNOWN!r}, the prediction for rejected images: choose another name.",
    )


@torch.no_grad()
def load_with_class(larger: Method, method: Faust, examples: ImageSource, kind: str) -> None:
    """Load into `larger`, an untrained method for one more class, the state of a trained method and the references of a new
    class, which are computed from its examples; see `references_from` for the kind."""
    first = torch.arange(min(method.count, len(examples.labels)), device=examples.labels.device)
    references = [references_from(rows, method.count, kind) for rows in all_embeddings(method, examples)]
    added = method.new_class(examples.plain(first), references)
    require(
        all(bool(rows.isfinite().all()) for rows in references),
        "The examples of the new class contain values that are not finite or too large: replace them.",
    )
    state = method.state_dict()
    larger.load_state_dict({key: torch.cat([old, added[key]]) if key in added else old for key, old in state.items()})
