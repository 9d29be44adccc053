"""The file of a hit: `torch.load(path, weights_only=True)` reads it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from megatron_nanguard.watching.hit import Hit


def save(hit: Hit, path: Path) -> None:
    """Write under a temporary name, then rename.

    Raises:
        OSError: the directory cannot be made or the file not written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            torch.save(hit.content(), file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
