"""Collectives that failed and that no accused device, rank or link explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.records.screening import BAD, CollectiveCheck, Outlier
from megatron_nanguard.screening.naming import Naming
from megatron_nanguard.screening.parallel_groups import Group


def find_bad_groups(
    checks: Mapping[int, Sequence[CollectiveCheck]], accused: Sequence[Outlier], naming: Naming
) -> list[Outlier]:
    """A member whose contribution arrives wrong at all others; else the group itself, the smallest ones first.

    Args:
        checks: of each rank.
        accused: who is an outlier already.
        naming: of ranks.
    """
    found: list[Outlier] = []
    bad = _bad_views(checks)
    for group in sorted(bad, key=lambda each: (len(each.ranks), each.ranks)):
        if not any(_explains(outlier, group) for outlier in (*accused, *found)):
            found.append(_accuse(group, bad[group], naming))
    return found


def _bad_views(checks: Mapping[int, Sequence[CollectiveCheck]]) -> dict[Group, dict[int, list[CollectiveCheck]]]:
    found: dict[Group, dict[int, list[CollectiveCheck]]] = {}
    for rank, seen in checks.items():
        for check in seen:
            if check.result in BAD:
                group = Group(check.axis, check.ranks)
                found.setdefault(group, {}).setdefault(rank, []).append(check)
    return found


def _explains(outlier: Outlier, group: Group) -> bool:
    """Whether all that the outlier consists of takes part in the group."""
    return set(outlier.ranks) <= set(group.ranks)


def _accuse(group: Group, views: Mapping[int, Sequence[CollectiveCheck]], naming: Naming) -> Outlier:
    evidence = tuple(_told(rank, check) for rank, seen in views.items() for check in seen)
    if source := _wrong_at_all_others(group, views):
        words = f"{naming(source[0])}: what it contributes arrives wrong at every other member"
        return Outlier("rank", source, words, evidence)
    operations = sorted({check.operation for seen in views.values() for check in seen})
    words = (
        f"{group.axis} group of {name_ranks(group.ranks)}: {', '.join(operations)} bad on {name_ranks(sorted(views))}; "
        "no member and no link of it that was tried alone is to blame"
    )
    return Outlier("group", group.ranks, words, evidence)


def _wrong_at_all_others(group: Group, views: Mapping[int, Sequence[CollectiveCheck]]) -> tuple[int, ...]:
    """The one member that all others accuse, as a tuple of one; empty when there is none."""
    others = {rank: {source for check in seen for source in check.wrong_from} for rank, seen in views.items()}
    sources = set().union(*others.values())
    if len(sources) != 1 or len(group.ranks) < 3:
        return ()
    accusers = {rank for rank, named in others.items() if named} - sources
    return tuple(sources) if accusers == set(group.ranks) - sources else ()


def _told(rank: int, check: CollectiveCheck) -> str:
    sources = f", from {name_ranks(check.wrong_from)}" if check.wrong_from else ""
    error = f", {check.words}" if check.words else ""
    return f"{check.operation} on rank {rank}: {check.result}{sources}{error}"
