"""A model for the check of gradients: `--model tests.ranks.own_model:build`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Linear, Module


def build() -> tuple[Module, object]:
    """One layer, and the mean of squares."""
    return Linear(3, 2), lambda model, batch: torch.square(model(batch["x"])).mean()


class OwnLoss(Module):
    """A module whose forward gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The logarithm of the smallest square: bad where the batch is."""
        return torch.square(self.layer(x)).log().mean()
