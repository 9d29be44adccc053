"""The groups and links that a parallel layout uses, in Megatron's default order of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from megatron_nanguard.errors import SettingsError
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes

_DENSE = ("tp", "cp", "dp", "pp")
_EXPERT = ("expert_tp", "ep", "expert_dp", "pp")
_SPANS = {
    "tp": (_DENSE, ("tp",)),
    "cp": (_DENSE, ("cp",)),
    "dp": (_DENSE, ("dp",)),
    "dp+cp": (_DENSE, ("dp", "cp")),
    "pp": (_DENSE, ("pp",)),
    "ep": (_EXPERT, ("ep",)),
    "expert_tp": (_EXPERT, ("expert_tp",)),
    "expert_dp": (_EXPERT, ("expert_dp",)),
    "all": (_DENSE, _DENSE),
}
"""Name of a family of groups: the axes of its grid, and those along which its members differ."""
_RINGS = ("tp", "cp", "dp", "pp", "ep", "expert_tp", "expert_dp")
"""Families whose neighbours send point to point; virtual pipeline stages connect the last stage to the first."""

Link = tuple[int, int]
"""Two ranks, the lower first."""


class Group(NamedTuple):
    """Ranks that enter a collective together.

    Attributes:
        axis: name of the family.
        ranks: ascending.
    """

    axis: str
    ranks: tuple[int, ...]


def layout_of(world: int, *, tp: int, pp: int, cp: int, ep: int, expert_tp: int | None) -> ParallelSizes:
    """Compute the sizes of all axes.

    Args:
        world: number of ranks.
        tp: tensor parallel size.
        pp: pipeline parallel size.
        cp: context parallel size.
        ep: expert parallel size.
        expert_tp: tensor parallel size inside the experts; None for `tp`, as in Megatron.
    Raises:
        SettingsError: the sizes do not divide the number of ranks.
    """
    expert_tp = tp if expert_tp is None else expert_tp
    _must_divide(world, f"--tp {tp} x --cp {cp} x --pp {pp}", tp * cp * pp)
    _must_divide(world, f"--expert-tp {expert_tp} x --ep {ep} x --pp {pp}", expert_tp * ep * pp)
    return ParallelSizes(
        world=world,
        tp=tp,
        cp=cp,
        ep=ep,
        dp=world // (tp * cp * pp),
        pp=pp,
        expert_tp=expert_tp,
        expert_dp=world // (expert_tp * ep * pp),
    )


def _must_divide(world: int, words: str, product: int) -> None:
    if world % product:
        raise SettingsError(
            f"screen: {words} is {product}, which does not divide the {world} ranks of this job; give the sizes that "
            "the training run has"
        )


def families(sizes: ParallelSizes) -> tuple[tuple[Group, ...], ...]:
    """The groups of every family; those of one family share no member.

    A family with the same groups as an earlier one is left out: without experts, theirs are the dense groups.
    """
    found: dict[tuple[tuple[int, ...], ...], str] = {}
    for axis in _SPANS:
        if members := _members(axis, sizes):
            found.setdefault(members, axis)
    return tuple(tuple(Group(axis, ranks) for ranks in members) for members, axis in found.items())


def links(sizes: ParallelSizes) -> tuple[Link, ...]:
    """Links between neighbours on the ring of every group, ascending."""
    found: set[Link] = set()
    for axis in _RINGS:
        for ranks in _members(axis, sizes):
            found.update(_pair(a, b) for a, b in zip(ranks, (*ranks[1:], ranks[0]), strict=True))
    return tuple(sorted(found))


def pairs(groups: Iterable[Sequence[int]]) -> tuple[Link, ...]:
    """Links between all members of the same group, ascending."""
    return tuple(sorted({_pair(a, b) for ranks in groups for a, b in combinations(ranks, 2)}))


def rounds(wanted: Sequence[Link]) -> tuple[tuple[Link, ...], ...]:
    """Split links into rounds in which each rank occurs once, so that all links of a round can run at the same time."""
    left, found = list(wanted), []
    while left:
        chosen = dict.fromkeys(_matching(left))
        found.append(tuple(chosen))
        left = [link for link in left if link not in chosen]
    return tuple(found)


def _matching(left: Sequence[Link]) -> Iterator[Link]:
    taken: set[int] = set()
    for link in left:
        if taken.isdisjoint(link):
            taken.update(link)
            yield link


def _members(axis: str, sizes: ParallelSizes) -> tuple[tuple[int, ...], ...]:
    """The groups of a family, each with two members or more."""
    grid, along = _SPANS[axis]
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(sizes.world):
        at = Coordinates.in_default_order(rank, sizes)
        found.setdefault(tuple(getattr(at, each) for each in grid if each not in along), []).append(rank)
    return tuple(tuple(ranks) for ranks in found.values() if len(ranks) > 1)


def _pair(a: int, b: int) -> Link:
    return (min(a, b), max(a, b))
