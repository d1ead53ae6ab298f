"""Linear classifiers that are fitted to the outputs of trained layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional

LBFGS_ITERATIONS = 100


class ReadOut(nn.Module):
    """Linear softmax classifier. Its weights are buffers, so training does not change them."""

    weight: Tensor  # (C, inputs)
    bias: Tensor  # (C,)

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.register_buffer("weight", torch.zeros(classes, inputs))
        self.register_buffer("bias", torch.zeros(classes))

    def forward(self, rows: Tensor) -> Tensor:
        """(B, inputs) → (B, C)"""
        return functional.linear(rows, self.weight, self.bias)

    @torch.enable_grad()
    def fit(self, rows: Tensor, labels: Tensor, weight_decay: float) -> None:
        """Minimise the cross entropy plus weight_decay / 2 · ‖weight‖² by L-BFGS, starting at zero. (n, inputs), (n,)

        The problem is convex, and the result is deterministic.
        """
        weight, bias = (torch.zeros_like(part, requires_grad=True) for part in (self.weight, self.bias))
        optimiser = torch.optim.LBFGS([weight, bias], max_iter=LBFGS_ITERATIONS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = functional.cross_entropy(functional.linear(rows, weight, bias), labels)
            loss = loss + weight_decay / 2 * weight.square().sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        self.weight.copy_(weight.detach())
        self.bias.copy_(bias.detach())
