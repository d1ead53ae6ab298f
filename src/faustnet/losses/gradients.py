"""Gradients that a loss function computes together with the loss, so that its backward pass only scales them."""

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from faustnet.system.devices import has_triton


def backward(output: Tensor, gradient: Tensor) -> None:
    """Do the same as `output.backward(gradient)`, which would import torch's symbolic shapes to compare the two shapes. That
    takes seconds. (…), (…)"""
    if output.shape != gradient.shape:
        raise RuntimeError(f"gradient must have the output's shape, {tuple(output.shape)}, got {tuple(gradient.shape)}.")
    _engine_run_backward((output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def unit_gradient(losses: Tensor) -> Tensor:
    """Return ones for `backward`. They are marked, so that `scaled_by_layer` need not multiply by them. The mark is the
    version of the tensor, because a hook may change the tensor in place. (…) → (…)"""
    ones = torch.ones_like(losses, requires_grad=False)
    ones.unit_version = ones._version  # type: ignore[attr-defined]
    return ones


def scaled_by_layer(by_embedding: Tensor, by_losses: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Multiply the gradient of each layer by the gradient by its loss. The result has the dtype of the gradient, or `dtype`.
    (…, R, e), (…) → (…, R, e)"""
    dtype = dtype or by_embedding.dtype
    if getattr(by_losses, "unit_version", None) == by_losses._version:
        return by_embedding.to(dtype)
    if by_embedding.dtype != torch.float64 and has_triton(by_embedding.device):
        from faustnet.nn.kernels import scale_layers

        return scale_layers(by_embedding, by_losses, dtype)
    return (by_embedding * by_losses[..., None, None].to(by_embedding.dtype)).to(dtype)
