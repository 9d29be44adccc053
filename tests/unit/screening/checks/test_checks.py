"""Every check on the CPU: right on a healthy device, wrong when a computation is spoiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from megatron_nanguard.device import CpuDevice
from megatron_nanguard.screening.checks import CHECKS, check_device, memory
from megatron_nanguard.screening.checks.device_under_test import DeviceUnderTest

SHARE = 1e-6


@pytest.fixture
def tested() -> DeviceUnderTest:
    return DeviceUnderTest(torch.device("cpu"), CpuDevice(), SHARE)


def results(name: str, tested: DeviceUnderTest) -> dict[str, str]:
    return {check.name: check.result for check in check_device(name, tested)}


def spoil(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, by: Callable[[torch.Tensor], Any]) -> None:
    """Let a function of torch give something else, in the dtypes of a device but not in the reference's."""
    original = getattr(owner, name)

    def spoiled(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        output: torch.Tensor = original(tensor, *args, **kwargs)
        if output.dtype is not torch.float64:
            by(output.view(-1))
        return output

    monkeypatch.setattr(owner, name, spoiled)


@pytest.mark.parametrize("name", CHECKS)
def test_a_healthy_device_is_right(name: str, tested: DeviceUnderTest) -> None:
    found = check_device(name, tested)
    assert found
    assert [check.words for check in found] == [""] * len(found)
    assert {check.result for check in found} == {"right"}


def test_the_same_bits_come_again(tested: DeviceUnderTest) -> None:
    assert [c.digest for c in check_device("matmul", tested)] == [c.digest for c in check_device("matmul", tested)]


def test_the_lowest_bit_of_a_product_of_whole_numbers_counts(
    tested: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, torch, "matmul", lambda flat: flat[5].add_(1))
    found = results("matmul", tested)
    assert found["matmul of whole numbers, float32"] == "wrong"
    assert found["matmul of whole numbers, bfloat16"] == "wrong"


def test_a_flipped_exponent_bit_of_a_product_is_wrong(tested: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, torch, "matmul", lambda flat: flat[5].mul_(4))
    assert set(results("matmul", tested).values()) == {"wrong"}


@pytest.mark.parametrize(
    ("method", "check"), [("sum", "sum over rows, float32"), ("amax", "maximum over rows, float32")]
)
def test_a_reduction_that_is_off_by_one_is_wrong(
    tested: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch, method: str, check: str
) -> None:
    spoil(monkeypatch, torch.Tensor, method, lambda flat: flat[:1].add_(1))
    assert results("reductions", tested)[check] == "wrong"


def test_a_softmax_or_exp_beyond_the_bound_is_wrong(tested: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, torch, "softmax", lambda flat: flat.mul_(1 + 2.0**-6))
    found = results("attention", tested)
    assert found == {"causal softmax, float32": "wrong", "causal softmax, bfloat16": "wrong", "exp, float32": "right"}
    spoil(monkeypatch, torch, "exp", lambda flat: flat[9].mul_(1 + 2.0**-11))
    assert results("attention", tested)["exp, float32"] == "wrong"


def test_memory_whose_addresses_are_mixed_up_is_wrong(tested: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    block = torch.empty(64, dtype=torch.int64)
    monkeypatch.setattr(memory, "_blocks", lambda tested: [block, block])
    (found,) = check_device("memory", tested)
    assert found.result == "wrong"
    assert found.words.startswith("wrong in 64 of 64 words; first in block 0, word 0: bits ")


def test_a_stuck_bit_is_found_by_the_inverse_pattern(tested: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(torch.Tensor):
        """Word 3 has its lowest bit set, whatever is written: bit 0 of 3 * an odd number is 1, of the inverse 0."""

        def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
            super().copy_(source)
            self.as_subclass(torch.Tensor)[3] |= 1
            return self

    block = torch.empty(64, dtype=torch.int64).as_subclass(Stuck)
    monkeypatch.setattr(memory, "_blocks", lambda tested: [block])
    (found,) = check_device("memory", tested)
    assert found.words == "wrong in 1 of 64 words; first in block 0, word 3: bits 0000000000000001 differ"


def test_an_error_of_the_device_is_a_result(tested: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nCompile with ...")

    monkeypatch.setattr(torch, "matmul", broken)
    (found,) = check_device("matmul", tested)
    assert (found.result, found.words) == ("failed", "CUDA error: uncorrectable ECC error encountered")


def test_the_share_of_memory_is_divided_among_the_ranks_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuDevice()
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda self: 1000)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert DeviceUnderTest(torch.device("cpu"), device, 0.8).memory_bytes == 800
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert DeviceUnderTest(torch.device("cpu"), device, 0.8).memory_bytes == 200
