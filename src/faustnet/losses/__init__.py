"""Loss functions and distances of the methods, and objectives made of several weighted losses.

All of them can be used in any training loop. See `formulas` for the shapes.
"""

from faustnet._deprecated import moved_names
from faustnet.losses.formulas import (
    centred_similarity_loss,
    competitive_loss,
    goodness,
    goodness_by_group,
    goodness_loss,
    marginal_contrastive_loss,
    mixed,
    paired_squared_distances,
    polar_log_odds,
    similarity_matching_loss,
    soft_minimum,
    squared_distances,
    symmetric_loss,
    triplet_loss,
    tuplet_loss,
)
from faustnet.losses.objective import (
    BatchTuplet,
    Contrastive,
    Objective,
    ReferenceTuplet,
    SimilarityMatching,
    Term,
    batch_tuplet_loss,
    reference_tuplet_loss,
)
from faustnet.losses.projected import projected_tuplet_loss

__all__ = [
    "BatchTuplet", "Contrastive", "Objective", "ReferenceTuplet", "SimilarityMatching", "Term", "batch_tuplet_loss",
    "centred_similarity_loss", "competitive_loss", "goodness", "goodness_by_group", "goodness_loss",
    "marginal_contrastive_loss", "mixed", "paired_squared_distances", "polar_log_odds", "projected_tuplet_loss",
    "reference_tuplet_loss", "similarity_matching_loss", "soft_minimum", "squared_distances", "symmetric_loss",
    "triplet_loss", "tuplet_loss",
]  # fmt: skip

__getattr__ = moved_names(__name__)
