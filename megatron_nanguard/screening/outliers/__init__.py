"""Finds the fewest devices, ranks, links and groups that explain all bad results. No IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from megatron_nanguard.records.machine.screening import DeviceCheck, Outlier, RankScreening
from megatron_nanguard.screening.outliers.bad_groups import find_bad_groups
from megatron_nanguard.screening.outliers.bad_links import find_bad_links


def find_outliers(
    ranks: Sequence[RankScreening], missing: Mapping[int, str], rank_name: Callable[[int], str]
) -> tuple[Outlier, ...]:
    """Name missing ranks and bad devices first, then ranks and links, then groups that none of these explain.

    Args:
        ranks: results of the ranks that came back.
        missing: rank to its last activity, of the ranks that did not come back.
        rank_name: words for a rank.
    """
    found = [
        Outlier("rank", (rank,), f"{rank_name(rank)} did not come back", (f"from {at}",))
        for rank, at in missing.items()
    ]
    found += find_bad_devices(ranks, rank_name)
    found += find_bad_links([transfer for each in ranks for transfer in each.transfers], rank_name)
    found += find_bad_groups({each.rank: each.collectives for each in ranks}, found, rank_name)
    return tuple(found)


def find_bad_devices(ranks: Sequence[RankScreening], rank_name: Callable[[int], str]) -> list[Outlier]:
    """Name devices that gave wrong values; when all devices fail the same check, name them as one group."""
    bad = {each.rank: [check for check in each.devices if check.result != "right"] for each in ranks}
    bad = {rank: checks for rank, checks in bad.items() if checks}
    failed = [{check.name for check in checks} for checks in bad.values()]
    if len(ranks) > 1 and len(bad) == len(ranks) and (shared := set.intersection(*failed)):
        words = f"every device fails at {', '.join(sorted(shared))}: a library or a driver rather than one device"
        return [Outlier("group", tuple(bad), words, tuple(_words(check) for check in next(iter(bad.values()))))]
    return [
        Outlier("device", (rank,), f"{rank_name(rank)} computes wrongly", tuple(_words(check) for check in checks))
        for rank, checks in bad.items()
    ]


def _words(check: DeviceCheck) -> str:
    return f"{check.name}: {check.words}"
