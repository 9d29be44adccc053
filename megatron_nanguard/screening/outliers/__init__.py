"""Who is the outlier: from everything that was tried to the fewest that explain it. Pure; undecided is an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megatron_nanguard.records.screening import DeviceCheck, Outlier, RankScreening
from megatron_nanguard.screening.naming import Naming
from megatron_nanguard.screening.outliers.bad_groups import find_bad_groups
from megatron_nanguard.screening.outliers.bad_links import find_bad_links


def find_outliers(ranks: Sequence[RankScreening], missing: Mapping[int, str], naming: Naming) -> tuple[Outlier, ...]:
    """Ranks that are gone and devices first, then ranks and links, then the groups that none of these explain.

    Args:
        ranks: what each rank that came back tried.
        missing: ranks that did not come back, and what they were doing.
        naming: of ranks.
    """
    found = [
        Outlier("rank", (rank,), f"{naming(rank)} did not come back", (f"from {at}",)) for rank, at in missing.items()
    ]
    found += find_bad_devices(ranks, naming)
    found += find_bad_links([transfer for each in ranks for transfer in each.transfers], naming)
    found += find_bad_groups({each.rank: each.collectives for each in ranks}, found, naming)
    return tuple(found)


def find_bad_devices(ranks: Sequence[RankScreening], naming: Naming) -> list[Outlier]:
    """Devices that gave wrong values; what all of several devices do alike is no outlier's doing."""
    bad = {each.rank: [check for check in each.devices if check.result != "right"] for each in ranks}
    bad = {rank: checks for rank, checks in bad.items() if checks}
    if len(ranks) > 1 and len(bad) == len(ranks) and (alike := _alike(list(bad.values()))):
        words = f"every device fails at {', '.join(alike)}: a library or a driver rather than one device"
        return [Outlier("group", tuple(bad), words, tuple(_told(check) for check in next(iter(bad.values()))))]
    return [
        Outlier("device", (rank,), f"{naming(rank)} computes wrongly", tuple(_told(check) for check in checks))
        for rank, checks in bad.items()
    ]


def _alike(checks: Sequence[Sequence[DeviceCheck]]) -> list[str]:
    names = [{check.name for check in each} for each in checks]
    return sorted(set.intersection(*names))


def _told(check: DeviceCheck) -> str:
    return f"{check.name}: {check.words}"
