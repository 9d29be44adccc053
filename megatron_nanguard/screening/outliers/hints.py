"""Hints that name no outlier: slow operations, and devices whose bits differ within the allowed bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from megatron_nanguard.records.machine.screening import RankScreening
from megatron_nanguard.records.phrase import name_ranks

FEWEST: Final = 5
"""Fewest measurements for a median."""
DEVIATIONS: Final = 6.0
TIMES_SLOWER: Final = 3.0
SCALE: Final = 1.4826
"""Makes the median absolute deviation of normally distributed values their standard deviation."""
SHOWN: Final = 8


def hints(ranks: Sequence[RankScreening]) -> tuple[str, ...]:
    """All hints; of the slow operations the first 8."""
    slow = [words for what, series in _series(ranks).items() for words in slow_ones(what, series)]
    rest = (f"{len(slow) - SHOWN} more are slow",) if len(slow) > SHOWN else ()
    return (*_odd_bits(ranks), *slow[:SHOWN], *rest)


def slow_ones(what: str, seconds: Mapping[str, float]) -> list[str]:
    """Name measurements far above the median, both in deviations and as a multiple.

    Args:
        what: the operation.
        seconds: rank or link in words to its seconds.
    """
    if len(seconds) < FEWEST:
        return []
    middle = median(seconds.values())
    deviation = SCALE * median(abs(each - middle) for each in seconds.values())
    limit = max(middle + DEVIATIONS * deviation, TIMES_SLOWER * middle)
    return [
        f"slow: {who}, {what}: {took * 1e3:.1f} ms, the median of {len(seconds)} is {middle * 1e3:.1f} ms"
        for who, took in seconds.items()
        if took > limit
    ]


def _series(ranks: Sequence[RankScreening]) -> dict[str, dict[str, float]]:
    """Measurements by operation, then by rank or link."""
    found: dict[str, dict[str, float]] = {}
    for each in ranks:
        for check in each.devices:
            found.setdefault(f"{check.name}, {each.device}", {})[f"rank {each.rank}"] = check.seconds
        for message in each.transfers:
            if message.end == "arrived" and message.result == "right":
                found.setdefault("transfer", {})[f"link {message.source} to {message.target}"] = message.seconds
        for call in each.collectives:
            if call.result == "right":
                who = f"{call.axis} group of {name_ranks(call.ranks)}"
                series = found.setdefault(f"{call.operation}, {call.axis}", {})
                series[who] = max(series.get(who, 0.0), call.seconds)
    return found


def _odd_bits(ranks: Sequence[RankScreening]) -> list[str]:
    """Devices of the same name compute the same bits from the same data, unless they use different kernels."""
    digests: dict[tuple[str, str], dict[int, str]] = {}
    for each in ranks:
        for check in each.devices:
            if check.digest and check.result == "right":
                digests.setdefault((check.name, each.device), {})[each.rank] = check.digest
    return [
        f"other bits than on most devices of the name, within the bound: {name_ranks(odd)}, {name}"
        for (name, _), by_rank in digests.items()
        if (odd := _odd_ones(by_rank))
    ]


def _odd_ones(digests: Mapping[int, str]) -> list[int]:
    usual, count = Counter(digests.values()).most_common(1)[0]
    return [rank for rank, digest in digests.items() if digest != usual] if 2 * count > len(digests) > 2 else []
