"""The file of a hit: `torch.load(path, weights_only=True)` reads it."""

from __future__ import annotations

from pathlib import Path

import torch

from megatron_nanguard.records.atomic_write import atomic_write
from megatron_nanguard.watching.bad_values import BadValues


def save(hit: BadValues, path: Path) -> None:
    """Write under a temporary name, then rename.

    Raises:
        OSError: the directory cannot be made or the file not written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        torch.save(hit.content(), file)
