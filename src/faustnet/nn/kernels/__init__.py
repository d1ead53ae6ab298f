"""GPU kernels in Triton: normalisation with ReLU, blocks of pixels, the tuplet and contrastive losses, scores, and updates
of optimisers.

Triton is installed with the GPU builds of PyTorch, so this package is imported only where `devices.has_triton` is true.
Kernels compute in float32, and may multiply in TF32 where torch does; their inputs and outputs may have another type. With
TRITON_INTERPRET=1 set before Triton is imported, they run on CPU tensors too, slowly, which the tests use.
"""

from faustnet.nn.kernels.batch_norm import batch_norm_relu, batch_norm_relu_mean, batch_norm_relu_with_means
from faustnet.nn.kernels.blocks import block_maxima, block_means
from faustnet.nn.kernels.cache_key import remember_key
from faustnet.nn.kernels.contrastive import marginal_contrastive
from faustnet.nn.kernels.muon import LookAhead, move, polynomial
from faustnet.nn.kernels.relu_norm import WIDEST, relu_norm, sum_rows
from faustnet.nn.kernels.scores import reference_scores
from faustnet.nn.kernels.tuplet import MOST_REFERENCES, reference_tuplet, scale_layers
from faustnet.nn.kernels.unit_rows import unit_rows
from faustnet.nn.kernels.update import Rule, update

__all__ = [
    "MOST_REFERENCES",
    "WIDEST",
    "LookAhead",
    "Rule",
    "batch_norm_relu",
    "batch_norm_relu_mean",
    "batch_norm_relu_with_means",
    "block_maxima",
    "block_means",
    "marginal_contrastive",
    "move",
    "polynomial",
    "reference_scores",
    "reference_tuplet",
    "relu_norm",
    "scale_layers",
    "sum_rows",
    "unit_rows",
    "update",
]

remember_key()
