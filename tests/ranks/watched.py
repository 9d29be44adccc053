"""Script of `test_watch.py`: `end_state.py` with a watch on the modules that WATCHED names, if it is set.

On rank FAULTY_RANK the activation of one MLP is a gelu whose forward is right and whose backward is NaN for larger
inputs, from step 2 on.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import megatron.training.training as host
import torch
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.watching.watcher import Watcher

FAULTY = "decoder.layers.3.mlp"
BAD_STEP = 2

steps: list[int] = []


class SteepGelu(torch.autograd.Function):
    """gelu, with a backward that divides zero by zero above 0.01, once it is bad."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.gelu(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (x,) = ctx.saved_tensors
        below = (x <= (0.01 if len(steps) >= BAD_STEP else math.inf)).to(x.dtype)
        return grad_outputs[0] * (below / below)


class Gelu(Module):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = SteepGelu.apply(x)
        return y


def planted(make_optimizer: Callable[..., Any]) -> Callable[..., Any]:
    """Plant before the guard sees the model, which is with its optimizer."""

    def made(config: Any, chunks: Any, *args: Any, **kwargs: Any) -> Any:
        if os.environ["RANK"] == os.environ.get("FAULTY_RANK"):
            name_modules(chunks)[FAULTY].activation_func = Gelu()
        return make_optimizer(config, chunks, *args, **kwargs)

    return made


def watching(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Watch each step of the training."""
    rank = torch.distributed.get_rank
    watchers: list[Watcher] = []

    def watched(forward_step: Any, data: Any, chunks: Any, *args: Any, **kwargs: Any) -> Any:
        steps.append(len(steps) + 1)
        if len(steps) == 1 and "WATCHED" in os.environ:
            watchers.append(
                Watcher(name_modules(chunks), os.environ["WATCHED"], None, None, rank=rank(), directory=Path())
            )
        for watcher in watchers:
            watcher.step_begins(steps[-1])
        returned = train_step(forward_step, data, chunks, *args, **kwargs)
        for watcher in watchers:
            watcher.step_ends()
        return returned

    return watched


host.get_megatron_optimizer = planted(host.get_megatron_optimizer)
host.train_step = watching(host.train_step)

import tests.ranks.end_state  # noqa: E402, F401  trains when it is imported
