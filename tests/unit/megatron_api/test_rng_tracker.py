"""Megatron's named random states."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from megatron_nanguard.megatron_api import rng_tracker


def test_states_are_copies_by_name(megatron: Any) -> None:
    from megatron.core.tensor_parallel import random

    random.model_parallel_cuda_manual_seed(3)
    kept = rng_tracker.states()
    before = {name: state.clone() for name, state in kept.items()}
    with random.get_cuda_rng_tracker().fork():
        torch.empty(1, device="cuda").uniform_()
    assert "model-parallel-rng" in kept
    assert all(torch.equal(state, before[name]) for name, state in kept.items())
    assert not torch.equal(rng_tracker.states()["model-parallel-rng"], kept["model-parallel-rng"])


def test_without_a_tracker_there_are_none(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.tensor_parallel import random

    monkeypatch.setattr(random, "_CUDA_RNG_STATE_TRACKER", None)
    assert rng_tracker.states() == {}
    monkeypatch.delitem(sys.modules, "megatron.core.tensor_parallel.random")
    assert rng_tracker.states() == {}


def test_kept_states_come_back_as_often_as_wanted(megatron: Any) -> None:
    from megatron.core.tensor_parallel import random

    random.model_parallel_cuda_manual_seed(3)
    kept, name = rng_tracker.states(), rng_tracker.current()
    drawn = []
    for _ in range(3):
        with random.get_cuda_rng_tracker().fork():
            drawn.append(torch.empty(1, device="cuda").uniform_().item())
        rng_tracker.put_back(kept, name)
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_graph_safe_state_stays_the_same_generator(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.tensor_parallel import random

    generator = torch.Generator().manual_seed(5)
    tracker = random.CudaRNGStatesTracker()
    tracker.set_states({"model-parallel-rng": generator})
    monkeypatch.setattr(random, "_CUDA_RNG_STATE_TRACKER", tracker)
    kept, name = rng_tracker.states(), rng_tracker.current()
    first = torch.rand(1, generator=generator).item()
    tracker._current_state_name = "elsewhere"
    rng_tracker.put_back(kept, name)
    assert tracker.get_states()["model-parallel-rng"] is generator
    assert torch.rand(1, generator=generator).item() == first
    assert tracker._current_state_name == "default-rng"


def test_there_is_nothing_to_keep_without_a_tracker(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.tensor_parallel import random

    monkeypatch.setattr(random, "_CUDA_RNG_STATE_TRACKER", None)
    assert rng_tracker.current() is None
    rng_tracker.put_back({"model-parallel-rng": torch.get_rng_state()}, "default-rng")
    assert rng_tracker.states() == {}
