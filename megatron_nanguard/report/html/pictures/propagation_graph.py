"""How the fault spread, as lanes: one for each origin, and one for the ranks that the same message made bad.

A lane stands in the column that says how many messages lie between it and the origin; lanes are in that order, and by
rank where it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from megatron_nanguard.records.incident import Incident, Origin
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.report.sections.propagation import SHOWN_ORIGINS, Parent, Way, hang, ways_beside, ways_of

SHOWN_WAYS: Final = 32
UNKNOWN_WAY: Final = phrase("bad before the reduction")

State = Literal["origin", "bad", "infected"]


@dataclass(frozen=True)
class Lane:
    """One row of the picture.

    Attributes:
        state: of its ranks: where it began, bad before the reduction, or bad after it only.
        ranks: the ranks it stands for.
        words: where on them.
        column: how many messages lie between it and the beginning.
        way: how the bad values came; None where they began.
        steps: operators on the way from an origin to a gradient.
        source: number of the lane that they came from; None where they began.
    """

    state: State
    ranks: tuple[int, ...]
    words: str
    column: int = 0
    way: Way | None = None
    steps: tuple[str, ...] = ()
    source: int | None = None

    @property
    def name(self) -> str:
        """The ranks in words."""
        return name_ranks(self.ranks)


@dataclass(frozen=True)
class Hop:
    """One communication between two lanes.

    Attributes:
        source: number of the lane that was bad.
        target: number of the lane that it made bad, or more so.
        way: the communication.
        is_first: the target was not bad before it.
    """

    source: int
    target: int
    way: Way
    is_first: bool


@dataclass(frozen=True)
class Lanes:
    """Everything that is drawn of an infection.

    Attributes:
        lanes: from top to bottom.
        hops: the communications between them.
        left_out: ways of infection that are not in it.
    """

    lanes: tuple[Lane, ...]
    hops: tuple[Hop, ...]
    left_out: int


def lanes_of(incident: Incident) -> Lanes:
    """Lay out the infection.

    Args:
        incident: the merged incident.
    """
    ways = ways_of(incident)
    after, loose = hang(incident.origin, ways[:SHOWN_WAYS])
    lanes: list[Lane] = []
    for place, origin in enumerate(incident.origin[:SHOWN_ORIGINS]):
        lanes.append(_origin(origin))
        _add(lanes, after, after.get(place, []), incident)
    for sources in dict.fromkeys(way.sources for way in loose if way.sources):
        lanes.append(Lane("bad", sources, UNKNOWN_WAY))
        _add(lanes, after, [way for way in loose if way.sources == sources], incident)
    ordered = _in_order(lanes)
    return Lanes(ordered, (*_first(ordered), *_beside(incident, ordered)), len(ways[SHOWN_WAYS:]))


def _origin(origin: Origin) -> Lane:
    where: str = origin.operator
    if origin.module:
        where = phrase("{operator} in {module}", operator=where, module=origin.module)
    return Lane("origin", origin.members, where, steps=origin.path[1:])


def _add(lanes: list[Lane], after: Mapping[Parent, list[Way]], ways: Sequence[Way], incident: Incident) -> None:
    """Hang ways, and everything that follows them, below the lane that is the last one."""
    source = len(lanes) - 1
    for way in ways:
        is_bad = set(way.ranks) <= set(incident.ranks.bad_before)
        column = lanes[source].column + 1
        lanes.append(Lane("bad" if is_bad else "infected", way.ranks, way.first_used, column, way, source=source))
        _add(lanes, after, after.get(way, []), incident)


def _in_order(lanes: Sequence[Lane]) -> tuple[Lane, ...]:
    order = sorted(range(len(lanes)), key=lambda index: (lanes[index].column, lanes[index].ranks))
    place: dict[int | None, int] = {index: position for position, index in enumerate(order)}
    return tuple(replace(lanes[index], source=place.get(lanes[index].source)) for index in order)


def _first(lanes: Sequence[Lane]) -> Iterator[Hop]:
    """What made each lane bad."""
    for target, lane in enumerate(lanes):
        if lane.way is not None and lane.source is not None:
            yield Hop(lane.source, target, lane.way, is_first=True)


def _beside(incident: Incident, lanes: Sequence[Lane]) -> Iterator[Hop]:
    """Communications between ranks that were bad already."""
    lane_of = {rank: number for number, lane in enumerate(lanes) for rank in lane.ranks}
    for way in ways_beside(incident)[:SHOWN_WAYS]:
        source = next((lane_of[rank] for rank in way.sources if rank in lane_of), None)
        targets = dict.fromkeys(lane_of[rank] for rank in way.ranks if rank in lane_of)
        yield from (
            Hop(source, target, way, is_first=False) for target in targets if source is not None and source != target
        )
