"""An operator that gives what mathematics says, of values that it was not meant for.

log_of_negative   the log of negative activations, in the forward step of one micro-batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ranks.seams.when import is_due_here, worse


def plant(mlp: Any) -> None:
    """Stand in the way of a layer's MLP."""
    mlp.forward = shifted(mlp.forward)


def shifted(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        output, bias = forward(*args, **kwargs)
        if is_due_here("log_of_negative"):
            output = output + torch.log(worse(-1, 1) * (output[:1].abs() + 1))
        return output, bias

    return run
