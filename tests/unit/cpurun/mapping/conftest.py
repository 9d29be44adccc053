"""torch with the mapping installed for one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch, with device "cuda" mapped onto the CPU for two local ranks."""
    import torch

    from megatron_nanguard import cpurun
    from megatron_nanguard.cpurun.mapping.device_arguments import current

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    state = torch.get_rng_state()
    cpurun.install()
    current.index = 0
    yield torch
    cpurun.uninstall()
    torch.set_rng_state(state)
