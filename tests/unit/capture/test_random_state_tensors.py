"""Random states through their files."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy
import torch
from safetensors.torch import load_file

from megatron_nanguard.capture.random_state_tensors import put_together, take_apart
from megatron_nanguard.capture.tensor_file import write_tensors
from megatron_nanguard.device import device_of
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.step.capture import CapturedRandom
from megatron_nanguard.sentinel.random_states import RngStates

CPU = device_of("cpu")


def through_files(states: RngStates, folder: Path) -> RngStates:
    """The states by way of a JSON and a safetensors file."""
    record, tensors = take_apart(states)
    write_tensors(folder / "a.safetensors", tensors)
    return put_together(from_json(CapturedRandom, to_json(record)), load_file(folder / "a.safetensors"))


def drawn() -> list[float]:
    """Normal numbers come in pairs: the second of each is kept in the state."""
    return [random.gauss(0, 1), float(numpy.random.randn()), torch.rand(1).item(), torch.randn(1).item()]


def test_every_generator_draws_on_as_it_would_have(tmp_path: Path) -> None:
    drawn()
    states = RngStates.now(CPU)
    expected = [drawn(), drawn()]

    for put_back in through_files(states, tmp_path).put_back(CPU).values():
        put_back()

    assert [drawn(), drawn()] == expected


def test_states_from_the_files_have_the_digests_of_the_post_mortem(tmp_path: Path) -> None:
    states = replace(RngStates.now(CPU), tracker={"model-parallel-rng": torch.get_rng_state()}, current="default-rng")

    found = through_files(states, tmp_path)

    assert found.digests() == states.digests()
    assert found.current == "default-rng"


def test_without_numpy_it_has_no_state(tmp_path: Path) -> None:
    assert through_files(replace(RngStates.now(CPU), numpy=None), tmp_path).numpy is None
