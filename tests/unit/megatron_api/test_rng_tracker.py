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
