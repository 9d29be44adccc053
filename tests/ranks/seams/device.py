"""A device whose kernel of one operator is wrong, each in its own way; written into its last tile.

kernel            always, in the training step and when it is called alone
kernel_once       once, and never again
kernel_sometimes  every third time
kernel_thrice     in the step, in the plain replay and in the traced one, and never again
kernel_in_step    whenever the step runs; never when it is called alone, as a device that is hot only then
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.ranks.seams.when import (
    ACCUSED,
    SEAMS,
    is_due,
    is_due_here,
    is_due_in_step,
    is_first_time,
    is_in_first_passes,
    spoil,
)

_calls: list[None] = []


def install() -> torch.library.Library:
    """Put the kernel in the place of torch's own, as long as the result lives."""
    library = torch.library.Library("aten", "IMPL")
    if any(name.startswith("kernel") for name in SEAMS.values()):
        library.impl("gelu", gelu, "CPU")
    return library


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """In float64 it is right: that is no kernel of the device."""
    result = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    if x.dtype == torch.float64 or not ACCUSED:
        return result
    _calls.append(None)
    is_wrong = (
        is_due("kernel")
        or (is_due_here("kernel_once") and is_first_time("kernel_once"))
        or (is_due("kernel_sometimes") and len(_calls) % 3 == 0)
        or (is_due_here("kernel_thrice") and is_in_first_passes("kernel_thrice", 3))
        or is_due_in_step("kernel_in_step")
    )
    if is_wrong:
        spoil(result, result.numel() - 64)
    return result
