"""How much a capture takes, known before it is begun."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from megatron_nanguard.capture.room import free_bytes, in_words, state_bytes
from megatron_nanguard.parameters.registry import ParameterMap
from megatron_nanguard.topology.coordinates import read
from tests.unit.one_rank import Trainer, trainer


def size_of(made: Trainer) -> int:
    return state_bytes([made.ddp], ParameterMap([made.ddp], read([made.ddp])[1]), made.optimizer)


def test_moments_are_counted_before_the_first_step_made_them(megatron: Any) -> None:
    made = trainer(optimizer="adam", bf16=True)
    # 6 weights: 2 bytes each, 4 for the main parameter and 8 for the moments.
    assert size_of(made) == 6 * (2 + 4 + 8)
    made.forward_backward()
    made.step()
    # torch's Adam counts its steps in a tensor of 4 bytes per parameter.
    assert size_of(made) == 6 * (2 + 4 + 8) + 2 * 4


def test_the_disk_is_known_before_the_directory_is_there(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert abs(free_bytes(tmp_path / "not" / "yet") - free) < free / 2


def test_sizes_are_told_in_gib() -> None:
    assert [in_words(3 << 30), in_words(0), in_words(1 << 20)] == ["3.00 GiB", "0.00 GiB", "0.00 GiB"]
