"""Writes a share of the free memory with a pattern that depends on the address, then its inverse, and reads it back.

wrong in 1 of 8388608 words; first in block 3, word 5120: bits 0000000000000400 differ
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from megatron_nanguard.records.machine.screening import DeviceCheck
from megatron_nanguard.screening.checks.device_under_test import DeviceUnderTest

BLOCK_WORDS = 1 << 23
"""64 MiB at a time: the expected pattern takes as much memory again."""
STRIDE = -7046029254386353131
"""0x9E3779B97F4A7C15, odd: neighbouring words differ in about half of their bits."""


def check(tested: DeviceUnderTest) -> Iterator[DeviceCheck]:
    """Write all blocks before reading, which finds writes to a wrong address too."""
    began = time.monotonic()
    blocks = _blocks(tested)
    problems = [_problem(blocks, inverse) for inverse in (False, True)]
    tested.backend.synchronize()
    words = next(filter(None, problems), "")
    size = sum(block.nbytes for block in blocks) >> 20
    yield DeviceCheck(f"memory, {size} MiB", "wrong" if words else "right", words, "", time.monotonic() - began)


def _blocks(tested: DeviceUnderTest) -> Sequence[Tensor]:
    words = tested.memory_bytes // 8
    sizes = [min(BLOCK_WORDS, words - start) for start in range(0, words, BLOCK_WORDS)]
    return [torch.empty(size, dtype=torch.int64, device=tested.device) for size in sizes]


def _problem(blocks: Sequence[Tensor], inverse: bool) -> str:
    """Write and read all blocks once; returns the first problem in words, or "".

    Sync: one host read per block.
    """
    for number, block in enumerate(blocks):
        block.copy_(_pattern(number, block, inverse))
    for number, block in enumerate(blocks):
        flipped = block ^ _pattern(number, block, inverse)
        if count := int(flipped.count_nonzero()):
            first = int((flipped != 0).to(torch.uint8).argmax())
            bits = int(flipped[first]) & (1 << 64) - 1
            return (
                f"wrong in {count} of {block.numel()} words; first in block {number}, word {first}: "
                f"bits {bits:016x} differ"
            )
    return ""


def _pattern(number: int, block: Tensor, inverse: bool) -> Tensor:
    words = torch.arange(block.numel(), dtype=torch.int64, device=block.device).add_(number * BLOCK_WORDS).mul_(STRIDE)
    return words.bitwise_not_() if inverse else words
