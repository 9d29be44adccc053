"""Names groups whose collectives failed, unless a bad device, rank or link explains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from megatron_nanguard.records.machine.screening import BAD, CollectiveCheck, Outlier
from megatron_nanguard.records.phrase import name_ranks
from megatron_nanguard.screening.parallel_groups import Group


def find_bad_groups(
    checks: Mapping[int, Sequence[CollectiveCheck]], known: Sequence[Outlier], rank_name: Callable[[int], str]
) -> list[Outlier]:
    """Name the member whose data arrives wrong at all others, else the whole group; smallest groups first.

    Args:
        checks: rank to its results.
        known: outliers found so far.
        rank_name: words for a rank.
    """
    found: list[Outlier] = []
    bad = _bad_results(checks)
    for group in sorted(bad, key=lambda each: (len(each.ranks), each.ranks)):
        # An outlier whose ranks are all members of the group explains it.
        if not any(set(outlier.ranks) <= set(group.ranks) for outlier in (*known, *found)):
            found.append(_outlier(group, bad[group], rank_name))
    return found


def _bad_results(checks: Mapping[int, Sequence[CollectiveCheck]]) -> dict[Group, dict[int, list[CollectiveCheck]]]:
    found: dict[Group, dict[int, list[CollectiveCheck]]] = {}
    for rank, seen in checks.items():
        for check in seen:
            if check.result in BAD:
                group = Group(check.axis, check.ranks)
                found.setdefault(group, {}).setdefault(rank, []).append(check)
    return found


def _outlier(group: Group, views: Mapping[int, Sequence[CollectiveCheck]], rank_name: Callable[[int], str]) -> Outlier:
    evidence = tuple(_words(rank, check) for rank, seen in views.items() for check in seen)
    if source := _wrong_at_all_others(group, views):
        words = f"{rank_name(source[0])}: what it contributes arrives wrong at every other member"
        return Outlier("rank", source, words, evidence)
    operations = sorted({check.operation for seen in views.values() for check in seen})
    words = (
        f"{group.axis} group of {name_ranks(group.ranks)}: {', '.join(operations)} bad on {name_ranks(sorted(views))}; "
        "no member and no link of it that was tried alone is to blame"
    )
    return Outlier("group", group.ranks, words, evidence)


def _wrong_at_all_others(group: Group, views: Mapping[int, Sequence[CollectiveCheck]]) -> tuple[int, ...]:
    """The one member whose data is wrong at all others, as a tuple of one; empty when there is none."""
    wrong_at = {rank: {source for check in seen for source in check.wrong_from} for rank, seen in views.items()}
    sources = set().union(*wrong_at.values())
    if len(sources) != 1 or len(group.ranks) < 3:
        return ()
    affected = {rank for rank, named in wrong_at.items() if named} - sources
    return tuple(sources) if affected == set(group.ranks) - sources else ()


def _words(rank: int, check: CollectiveCheck) -> str:
    sources = f", from {name_ranks(check.wrong_from)}" if check.wrong_from else ""
    error = f", {check.words}" if check.words else ""
    return f"{check.operation} on rank {rank}: {check.result}{sources}{error}"
