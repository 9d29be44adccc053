"""How much room a capture takes, before it is begun."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.nn import Module

from megatron_nanguard.capture.model_state import live_state
from megatron_nanguard.megatron_api.optimizer_state import optimizer_parameters
from megatron_nanguard.parameters.registry import ParameterMap

MOMENTS = 2
"""Tensors as large as a main parameter that Adam makes in its first step."""


def state_bytes(chunks: Sequence[Module], names: ParameterMap, optimizer: Any) -> int:
    """What model and optimizer of this rank take in a file, those moments included that are not there yet."""
    now = sum(tensor.nbytes for tensor in live_state(chunks, names, optimizer).values())
    return now + sum(MOMENTS * one.main.nbytes for one in optimizer_parameters(optimizer) if not one.state)


def free_bytes(directory: Path) -> int:
    """Room on the disk where a directory is, or will be."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def in_words(num_bytes: int) -> str:
    """3221225472 -> "3.00 GiB"."""
    return f"{num_bytes / 2**30:.2f} GiB"
