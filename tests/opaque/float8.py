"""A float8 tensor as Transformer Engine keeps it, an object around plain ones, and how it is saved for a backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.opaque import kernels
from tests.opaque.kernels import Float8


@dataclass
class Float8Storage:
    """Float8 values and the factor that takes them back.

    Attributes:
        data: uint8, the shape of what it stands for; None while it is saved.
        scale_inv: float32 [1].
        format: e4m3 or e5m2.
    """

    data: Tensor
    scale_inv: Tensor
    format: str

    def as_float8(self) -> Float8:
        """For a kernel."""
        return Float8(self.data, self.format)

    def take_tensors(self) -> tuple[Tensor, ...]:
        """Its tensors, which it does not hold any more: autograd saves them."""
        taken = (self.data, self.scale_inv)
        self.data = self.scale_inv = None  # type: ignore[assignment]
        return taken

    def give_back(self, tensors: list[Tensor]) -> None:
        """Take what was saved from the front of the list."""
        self.data, self.scale_inv = tensors.pop(0), tensors.pop(0)


@dataclass
class Float8Quantizer:
    """Casts to float8 with a scale of earlier steps, and remembers the largest value for later ones.

    Attributes:
        scale: float32 [1], a view of the module's state.
        amax: float32 [1], a view of its history.
        format: e4m3 or e5m2.
    """

    scale: Tensor
    amax: Tensor
    format: str

    def __call__(self, x: Tensor) -> Float8Storage:
        """Cast a whole tensor."""
        data = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        made = Float8Storage(data, torch.empty(1, dtype=torch.float32, device=x.device), self.format)
        self.update(x, made)
        return made

    def update(self, x: Tensor, made: Float8Storage) -> None:
        """Cast into memory that is there."""
        kernels.quantize(x, made.as_float8(), self.scale, self.amax, made.scale_inv)


def prepare_for_saving(*tensors: Any) -> tuple[list[Tensor | None], list[Any]]:
    """Tensors for `save_for_backward`, and the objects that they belong to; None for plain ones."""
    to_save: list[Tensor | None] = []
    objects: list[Any] = []
    for tensor in tensors:
        if isinstance(tensor, Float8Storage):
            # The object may be a cache of its module: what is saved belongs to another one.
            own = Float8Storage(tensor.data, tensor.scale_inv, tensor.format)
            to_save += own.take_tensors()
            objects.append(own)
        else:
            to_save.append(tensor)
            objects.append(None)
    return to_save, objects


def restore_from_func_ctx(ctx: Any) -> list[Any]:
    """What `prepare_for_saving` was given."""
    saved = list(ctx.saved_tensors)
    restored: list[Any] = []
    for owner in ctx.tensor_objects:
        if owner is None:
            restored.append(saved.pop(0))
        else:
            owner.give_back(saved)
            restored.append(owner)
    ctx.tensor_objects = None
    return restored
