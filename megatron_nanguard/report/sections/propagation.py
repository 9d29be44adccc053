"""How it went on from the origin: through the operators of the rank to a gradient, and from rank to rank.

rank 5: index_put_ in decoder.layers.3.mlp
|- on the rank: add_.Tensor in decoder.layers.3.pre_mlp_layernorm.weight
|- rank 4 by TP all-reduce (tensor-parallel group of pp1 dp0, ranks 4, 5)
|  `- rank 6 by DP gradient all-reduce (data-parallel group of tp0 pp1, ranks 4, 6)
`- rank 1 by PP recv from rank 5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from megatron_nanguard.records.incident import Incident, Infected, Origin
from megatron_nanguard.records.phrase import FOLLOWED, joined, phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.report.blocks import Block, Point, Tone
from megatron_nanguard.report.formatting import MORE, counted, which_ranks
from megatron_nanguard.report.opened_incident import OpenedIncident

SHOWN_ORIGINS: Final = 3
SHOWN_WAYS: Final = 16
TITLE: Final = phrase("How it spread")
THROUGH: Final = phrase("How it spread: {ranks} through communication alone")
BESIDE: Final = phrase("more gradients of {who} went bad by {by} from {sources}")
ONWARDS: Final = phrase("{first} > {then}")
PATH_START, PATH_END = 3, 2
"""Steps of a long path that are shown: how it left the origin, and the gradient it reached."""


class Way(NamedTuple):
    """One communication and everybody it made bad.

    Attributes:
        ranks: who went bad by it.
        sources: whom it came from.
        by: the communication.
        group: it went through.
        first_used: what would have used the bad values first; empty when unknown.
        call: the operator behind it, and its running number; empty when unknown.
        gradients: what it made bad, where only gradients are.
    """

    ranks: tuple[int, ...]
    sources: tuple[int, ...]
    by: str
    group: str
    first_used: str = ""
    call: str = ""
    gradients: tuple[str, ...] = ()


def describe(opened: OpenedIncident) -> Block | None:
    """A tree per origin; ways that no origin leads to stand after them. Nothing where no origin is known."""
    incident = opened.incident
    ways = ways_of(incident)
    if not incident.origin or not (ways or any(len(origin.path) > 1 for origin in incident.origin)):
        return None
    shown = ways[:SHOWN_WAYS]
    after, loose = hang(incident.origin, shown)
    trees = [_origin(place, origin, after) for place, origin in enumerate(incident.origin[:SHOWN_ORIGINS])]
    title = TITLE
    if ways:
        title = THROUGH.format(ranks=counted(len(incident.infected), "rank"))
    return Block(
        title,
        tree=(*trees, *(_way(way, after) for way in loose)),
        notes=(
            *_left_out(len(ways) - len(shown), len(incident.origin) - len(trees)),
            *map(_beside, ways_beside(incident)[:SHOWN_WAYS]),
        ),
    )


def ways_of(incident: Incident) -> list[Way]:
    """Ranks that share communication, sources and first use are told together."""
    return _ways(incident.infected)


def ways_beside(incident: Incident) -> list[Way]:
    """The same of communications that made more gradients bad on ranks that were bad already."""
    return _ways(incident.also_infected)


def _ways(all_infected: Sequence[Infected]) -> list[Way]:
    ways: dict[tuple[object, ...], Way] = {}
    ranks: dict[tuple[object, ...], list[int]] = {}
    for one in all_infected:
        way = Way((), one.from_ranks, one.by, one.group, one.first_used or "", one.call, one.gradients)
        ways[tuple(way)] = way
        ranks.setdefault(tuple(way), []).append(one.rank)
    return [way._replace(ranks=tuple(sorted(ranks[key]))) for key, way in ways.items()]


Parent = int | Way
"""The number of an origin, or the way that made a source bad."""


def hang(origins: Sequence[Origin], ways: Sequence[Way]) -> tuple[dict[Parent, list[Way]], list[Way]]:
    """What follows what, beginning at the origins; a way is hung up once, so that no circle is closed."""
    reached: dict[int, Parent] = {}
    for place, origin in enumerate(origins[:SHOWN_ORIGINS]):
        for rank in origin.members:
            reached.setdefault(rank, place)
    after: dict[Parent, list[Way]] = {}
    waiting = list(ways)
    while ready := [way for way in waiting if any(source in reached for source in way.sources)]:
        for way in ready:
            parent = next(reached[source] for source in way.sources if source in reached)
            after.setdefault(parent, []).append(way)
        for way in ready:
            for rank in way.ranks:
                reached.setdefault(rank, way)
        waiting = [way for way in waiting if way not in ready]
    return after, waiting


def _origin(place: int, origin: Origin, after: dict[Parent, list[Way]]) -> Point:
    what: str = origin.operator
    if origin.module:
        what = phrase("{operator} in {module}", operator=what, module=origin.module)
    on_the_rank = [Point(phrase("on the rank:"), detail=_path(origin.path[1:]))] if len(origin.path) > 1 else []
    below = (*on_the_rank, *(_way(way, after) for way in after.get(place, ())))
    who = which_ranks(origin.members)
    return Point(phrase("{who}: {what}", who=who, what=what), tone=Tone.WORST, below=below)


def _path(path: Sequence[str]) -> str:
    more = len(path) - PATH_START - PATH_END
    shown = [*path[:PATH_START], phrase("... {more} more", more=more), *path[-PATH_END:]] if more > 0 else path
    return joined(ONWARDS, shown)


def _way(way: Way, after: dict[Parent, list[Way]]) -> Point:
    below = tuple(_way(one, after) for one in after.get(way, ()))
    words = phrase("{who} by {by}", who=which_ranks(way.ranks), by=way.by)
    return Point(words, tone=Tone.SPREAD, detail=_detail(way), below=below)


def _detail(way: Way) -> str:
    group = phrase("({group})", group=way.group) if way.group and not _is_named(way) else ""
    used = phrase("first used in {place}", place=way.first_used) if way.first_used else ""
    return joined(FOLLOWED, (group, used))


def _is_named(way: Way) -> bool:
    """A message between two ranks names its sender already: "PP recv from rank 5"."""
    return len(way.ranks) == 1 and way.by.endswith(f"from {name_ranks(way.sources)}")


def _beside(way: Way) -> str:
    words = BESIDE.format(who=name_ranks(way.ranks), by=way.by, sources=name_ranks(way.sources))
    if not way.gradients:
        return words
    return phrase("{words}: {gradients}", words=words, gradients=", ".join(way.gradients))


def _left_out(ways: int, origins: int) -> Iterator[str]:
    if ways > 0:
        yield MORE.format(more=counted(ways, "more way"))
    if origins > 0:
        yield MORE.format(more=counted(origins, "more origin"))
