"""Results of ranks of layout A: every factory makes a right result, and takes what differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatron_nanguard.records.machine.screening import CollectiveCheck, DeviceCheck, RankScreening, Transfer

MATMUL = DeviceCheck("matmul, bfloat16", "right", "", "0123456789abcdef", 0.001)
EXPECTED, SPOILED = "1111111111111111", "2222222222222222"


def rank(number: int, **changes: Any) -> RankScreening:
    return replace(RankScreening(number, "host0", "Test card", devices=(MATMUL,)), **changes)


def message(source: int, target: int, result: str = "right", sent: str = "right") -> list[Transfer]:
    """Both ends of one message.

    Args:
        source: rank.
        target: rank.
        result: of the end where it arrives.
        sent: of the other one.
    """
    words = "no end after 3 s" if result == "late" else ""
    left = Transfer(source, target, "sent", sent, EXPECTED if sent == "right" else SPOILED, EXPECTED, 0.001)  # type: ignore[arg-type]
    came = EXPECTED if result == "right" else SPOILED
    return [left, Transfer(source, target, "arrived", result, came, EXPECTED, 0.001, words)]  # type: ignore[arg-type]


def call(ranks: tuple[int, ...], result: str = "right", axis: str = "dp", **changes: Any) -> CollectiveCheck:
    check = CollectiveCheck(axis, ranks, "all_gather", result, (), 0.001)  # type: ignore[arg-type]
    return replace(check, **changes)


def rank_name(number: int) -> str:
    return f"rank {number}"
