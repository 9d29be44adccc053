from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("device", ["cuda", "cuda:1", 0], ids=str)
def test_a_tensor_for_a_cuda_device_is_made_on_the_cpu(mapped: Any, device: Any) -> None:
    assert mapped.zeros(2, device=device).device.type == "cpu"
    assert mapped.ones(2).new_empty(3, device=device, pin_memory=True).device.type == "cpu"
    assert mapped.rand_like(mapped.ones(2), device=device).device.type == "cpu"


def test_a_torch_device_counts_too(mapped: Any) -> None:
    assert mapped.arange(3, device=mapped.device("cuda", 1)).tolist() == [0, 1, 2]


def test_inside_a_device_context_everything_is_on_the_cpu(mapped: Any) -> None:
    with mapped.device("cuda"):
        assert mapped.empty(1).device.type == "cpu"


def test_meta_stays_meta(mapped: Any) -> None:
    assert mapped.empty(1, device="meta").device.type == "meta"


def test_a_cuda_generator_is_one_of_the_cpu(mapped: Any) -> None:
    generator = mapped.Generator(device="cuda")

    assert generator.device.type == "cpu"
    assert isinstance(generator, mapped.Generator)


@pytest.mark.parametrize("where", [None, "cuda:0", {"cuda:0": "cuda:1"}], ids=str)
def test_loading_goes_to_the_cpu(mapped: Any, tmp_path: Path, where: Any) -> None:
    mapped.save(mapped.ones(2), tmp_path / "saved")

    assert mapped.load(tmp_path / "saved", map_location=where).device.type == "cpu"
