"""Linear classifiers that are fitted to what layers give, once those have been trained."""

import torch
from torch import Tensor, nn
from torch.nn import functional

ITERATIONS = 100


class ReadOut(nn.Module):
    """A linear softmax of rows of `inputs` values. It lies in buffers: no gradient of a training reaches it."""

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
        """Minimise the cross entropy plus weight_decay / 2 · ‖weight‖², from zero. (n, inputs), (n,)

        That is a convex problem, which all rows at once and L-BFGS solve in a moment, the same way each time.
        """
        weight, bias = (torch.zeros_like(part, requires_grad=True) for part in (self.weight, self.bias))
        optimiser = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = functional.cross_entropy(functional.linear(rows, weight, bias), labels)
            loss = loss + weight_decay / 2 * weight.square().sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        self.weight.copy_(weight.detach())
        self.bias.copy_(bias.detach())
