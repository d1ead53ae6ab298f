"""Classes that are added to a trained method without training."""

import torch

from faustnet.data import ImageSource
from faustnet.errors import require
from faustnet.methods import Faust, Method
from faustnet.nn.references import references_from
from faustnet.training.evaluation import all_embeddings


def extend(method: Faust, larger: Method, examples: ImageSource, kind: str) -> None:
    """Load the state of `method` into `larger`, the same method with one class more, whose references are computed from
    the embeddings of its examples; `references_from` explains `kind`. Draws from torch's global generator for k-means."""
    with torch.no_grad():
        references = [references_from(rows, method.count, kind) for rows in all_embeddings(method, examples)]
        first = torch.arange(min(method.count, len(examples.labels)), device=examples.labels.device)
        added = method.new_class(examples.plain(first), references)
    require(
        all(bool(rows.isfinite().all()) for rows in references),
        "The examples of the new class contain values that are not finite or too large: replace them.",
    )
    state = method.state_dict()
    larger.load_state_dict({key: torch.cat([old, added[key]]) if key in added else old for key, old in state.items()})
