"""Tests of one device, in this order. Each file yields one result after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from megatron_nanguard.records.machine.screening import DeviceCheck
from megatron_nanguard.screening.checks import attention, matmul, memory, reductions
from megatron_nanguard.screening.checks.device_under_test import DeviceUnderTest

CHECKS: Final[dict[str, Callable[[DeviceUnderTest], Iterator[DeviceCheck]]]] = {
    "matmul": matmul.check,
    "reductions": reductions.check,
    "attention": attention.check,
    "memory": memory.check,
}


def check_device(name: str, tested: DeviceUnderTest) -> tuple[DeviceCheck, ...]:
    """Run one kind of check; an error of the device becomes a result."""
    try:
        return tuple(CHECKS[name](tested))
    except RuntimeError as error:  # torch raises it for an illegal access, an ECC error and lack of memory
        return (DeviceCheck(name, "failed", str(error).partition("\n")[0], "", 0.0),)
