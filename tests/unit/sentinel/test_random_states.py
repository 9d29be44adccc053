"""Random states at the start of a step."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch

from megatron_nanguard.device import device_of
from megatron_nanguard.sentinel.random_states import RngStates


def test_equal_states_have_equal_digests_of_twelve_digits() -> None:
    first, second = (RngStates.now(device_of("cpu")).digests() for _ in range(2))
    assert first == second
    assert {len(digest) for digest in (first.python, first.numpy, first.torch_cpu, first.device)} == {12}


def test_each_generator_has_a_digest_of_its_own() -> None:
    before = RngStates.now(device_of("cpu")).digests()
    random.random()
    after_python = RngStates.now(device_of("cpu")).digests()
    assert (after_python.python != before.python, after_python.numpy == before.numpy) == (True, True)
    numpy.random.rand()
    after_numpy = RngStates.now(device_of("cpu")).digests()
    assert (after_numpy.python, after_numpy.torch_cpu) == (after_python.python, before.torch_cpu)
    assert after_numpy.numpy != before.numpy
    torch.rand(1)
    assert RngStates.now(device_of("cpu")).digests().torch_cpu != before.torch_cpu


def test_a_kept_state_is_that_of_its_moment() -> None:
    kept = RngStates.now(device_of("cpu"))
    before = kept.digests()
    random.random()
    torch.rand(1)
    assert kept.digests() == before


def test_megatrons_named_states_are_kept_by_name(megatron: Any) -> None:
    from megatron.core.tensor_parallel import random as megatron_random

    megatron_random.model_parallel_cuda_manual_seed(7)
    before = RngStates.now(device_of("cpu"))
    with megatron_random.get_cuda_rng_tracker().fork():
        torch.empty(1, device="cuda").uniform_()
    after = RngStates.now(device_of("cpu"))
    name = "model-parallel-rng"
    assert name in before.tracker
    assert before.digests().tracker[name] != after.digests().tracker[name]


def test_every_generator_is_put_back_as_often_as_wanted() -> None:
    def drawn() -> list[float]:
        return [random.random(), float(numpy.random.rand()), torch.rand(1).item()]

    kept = RngStates.now(device_of("cpu"))
    first = drawn()
    for _ in range(2):
        for put_back in kept.put_back(device_of("cpu")).values():
            put_back()
        assert drawn() == first
