"""Loads the model and the batch of a gradient check: `pkg.module:build`, and a file of tensors.

    def build():
        return MyModel(), lambda model, batch: cross_entropy(model(batch["x"]), batch["y"])

`build()` takes no arguments and returns a module and `loss_fn(model, batch)`, or a module alone whose
`forward(**batch)` returns the loss. The batch is a `.safetensors` file, or a dictionary of tensors from torch.save.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.errors import SettingsError

Batch = dict[str, Tensor]
LossFn = Callable[[Module, Batch], Tensor]


@dataclass(frozen=True)
class UserModel:
    """A model with its loss function and one batch.

    Attributes:
        model: in host memory until `loss_on` moves it.
        loss_fn: computes the loss of the model on a batch.
        batch: name to tensor, in host memory.
    """

    model: Module
    loss_fn: LossFn
    batch: Batch

    @classmethod
    def load(cls, builder_name: str, batch_file: Path) -> UserModel:
        """Build the model with one seed on every rank, and read the batch.

        Raises:
            SettingsError: the model cannot be built, or the batch cannot be read.
        """
        builder = _find(builder_name)
        torch.manual_seed(1234)
        return cls(*_build(builder), _read(batch_file))

    def loss_on(self, device: torch.device) -> Tensor:
        """Move model and batch to the device, and compute the loss.

        Raises:
            SettingsError: the result is no single number with a gradient.
        """
        self.model.to(device)
        loss = self.loss_fn(self.model, {name: tensor.to(device) for name, tensor in self.batch.items()})
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            seen = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise SettingsError(f"--model: the loss is {seen}, expected one number that has a gradient")
        return loss


def _find(name: str) -> Callable[[], Any]:
    """Import the function `pkg.module:build`; modules in the working directory are found too."""
    module_name, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        builder: Callable[[], Any] = getattr(importlib.import_module(module_name), function)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"--model {name!r}: {error}; expected MODULE:FUNCTION, importable from {os.getcwd()}"
        ) from error
    return builder


def _build(builder: Callable[[], Any]) -> tuple[Module, LossFn]:
    built = builder()
    model, loss_fn = built if isinstance(built, tuple) and len(built) == 2 else (built, _loss_of_forward)
    if not isinstance(model, Module) or not callable(loss_fn):
        raise SettingsError(
            f"--model: the function gave {type(built).__name__}, expected a torch module whose forward(**batch) gives "
            "the loss, or (module, loss_fn)"
        )
    return model, loss_fn


def _read(file: Path) -> Batch:
    try:
        batch = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except (OSError, EOFError, SafetensorError, pickle.UnpicklingError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise SettingsError(
            f"--batch {file}: cannot be read ({reason}); expected .safetensors, or a dictionary of tensors that "
            "torch.save wrote"
        ) from error
    if not isinstance(batch, dict) or not all(isinstance(each, Tensor) for each in batch.values()):
        raise SettingsError(f"--batch {file}: holds {type(batch).__name__}, expected a dictionary of tensors")
    return batch


def _loss_of_forward(model: Module, batch: Batch) -> Tensor:
    loss: Tensor = model(**batch)
    return loss
