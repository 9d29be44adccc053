"""How the bad values spread from the origin: on its rank to a gradient, and from rank to rank by communication.

rank 5: index_put_ in decoder.layers.3.mlp
|- on the rank: add_.Tensor in decoder.layers.3.pre_mlp_layernorm.weight
|- rank 4 by TP all-reduce (tensor-parallel group of pp1 dp0, ranks 4, 5)
|  `- rank 6 by DP gradient all-reduce (data-parallel group of tp0 pp1, ranks 4, 6)
`- rank 1 by PP recv from rank 5
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from megatron_nanguard.records.incident import Infected, Origin
from megatron_nanguard.records.phrase import FOLLOWED, joined, name_ranks, phrase
from megatron_nanguard.report.blocks import Block, Point, Tone
from megatron_nanguard.report.formatting import call_words, counted, more_note, which_ranks
from megatron_nanguard.report.opened_incident import OpenedIncident

SHOWN_ORIGINS: Final = 3
SHOWN_TRANSFERS: Final = 16
THROUGH: Final = phrase("How it spread: {ranks} became bad through communication alone")
BESIDE: Final = phrase("{by} from {sources} made more gradients of {who} bad")
PATH_START, PATH_END = 3, 2
"""Steps of a long path that are shown: the first after the origin, and the last, which end at a gradient."""


class BadTransfer(NamedTuple):
    """One communication that carried bad values, with all ranks that it made bad.

    Attributes:
        ranks: the ranks that received bad values.
        sources: the ranks that sent them.
        by: the name of the communication.
        group: the process group that it went through.
        first_used: where the bad values were used first; empty when unknown.
        call: the operator of the communication and its running number; empty when unknown.
        gradients: the gradients that became bad, where nothing else did.
    """

    ranks: tuple[int, ...]
    sources: tuple[int, ...]
    by: str
    group: str
    first_used: str = ""
    call: str = ""
    gradients: tuple[str, ...] = ()


def describe(opened: OpenedIncident) -> Block | None:
    """Show a tree for each origin, then the transfers that no origin leads to; None where no origin is known."""
    incident = opened.incident
    transfers = transfers_of(incident.infected)
    if not incident.origin or not (transfers or any(len(origin.path) > 1 for origin in incident.origin)):
        return None
    shown = transfers[:SHOWN_TRANSFERS]
    after, loose = build_trees(incident.origin, shown)
    trees = [_origin(index, origin, after) for index, origin in enumerate(incident.origin[:SHOWN_ORIGINS])]
    title = phrase("How it spread")
    if transfers:
        title = THROUGH.format(ranks=counted(len(incident.infected), "rank"))
    return Block(
        title,
        tree=(*trees, *(_transfer(transfer, after) for transfer in loose)),
        notes=(
            *more_note(len(transfers) - len(shown), "more transfer"),
            *more_note(len(incident.origin) - len(trees), "more origin"),
            *map(_beside, transfers_of(incident.also_infected)[:SHOWN_TRANSFERS]),
        ),
    )


def transfers_of(all_infected: Sequence[Infected]) -> list[BadTransfer]:
    """List transfers; ranks with the same communication, sources and first use share one.

    Args:
        all_infected: one per rank that became bad, or one per rank that was bad already.
    """
    transfers: dict[tuple[object, ...], BadTransfer] = {}
    ranks: dict[tuple[object, ...], list[int]] = {}
    for one in all_infected:
        transfer = BadTransfer((), one.from_ranks, one.by, one.group, one.first_used or "", one.call, one.gradients)
        transfers[tuple(transfer)] = transfer
        ranks.setdefault(tuple(transfer), []).append(one.rank)
    return [transfer._replace(ranks=tuple(sorted(ranks[key]))) for key, transfer in transfers.items()]


Parent = int | BadTransfer
"""What a transfer follows: the number of an origin, or the transfer that made its source bad."""


def build_trees(
    origins: Sequence[Origin], transfers: Sequence[BadTransfer]
) -> tuple[dict[Parent, list[BadTransfer]], list[BadTransfer]]:
    """Arrange transfers in trees below the origins.

    A transfer gets a single parent, so that a circle of transfers does not repeat for ever.

    Args:
        origins: the roots, in order.
        transfers: the transfers to arrange.
    Returns:
        The transfers below each parent, and those that no origin leads to.
    """
    reached: dict[int, Parent] = {}
    for index, origin in enumerate(origins[:SHOWN_ORIGINS]):
        for rank in origin.members:
            reached.setdefault(rank, index)
    after: dict[Parent, list[BadTransfer]] = {}
    waiting = list(transfers)
    while ready := [transfer for transfer in waiting if any(source in reached for source in transfer.sources)]:
        for transfer in ready:
            parent = next(reached[source] for source in transfer.sources if source in reached)
            after.setdefault(parent, []).append(transfer)
        for transfer in ready:
            for rank in transfer.ranks:
                reached.setdefault(rank, transfer)
        waiting = [transfer for transfer in waiting if transfer not in ready]
    return after, waiting


def _origin(index: int, origin: Origin, after: dict[Parent, list[BadTransfer]]) -> Point:
    on_the_rank = [Point(phrase("on the rank:"), detail=_path(origin.path[1:]))] if len(origin.path) > 1 else []
    below = (*on_the_rank, *(_transfer(transfer, after) for transfer in after.get(index, ())))
    words = phrase("{who}: {what}", who=which_ranks(origin.members), what=call_words(origin))
    return Point(words, tone=Tone.WORST, below=below)


def _path(path: Sequence[str]) -> str:
    more = len(path) - PATH_START - PATH_END
    shown = [*path[:PATH_START], phrase("... {more} more", more=more), *path[-PATH_END:]] if more > 0 else path
    return joined(phrase("{first} > {then}"), shown)


def _transfer(transfer: BadTransfer, after: dict[Parent, list[BadTransfer]]) -> Point:
    below = tuple(_transfer(one, after) for one in after.get(transfer, ()))
    words = phrase("{who} by {by}", who=which_ranks(transfer.ranks), by=transfer.by)
    return Point(words, tone=Tone.SPREAD, detail=_detail(transfer), below=below)


def _detail(transfer: BadTransfer) -> str:
    group = phrase("({group})", group=transfer.group) if transfer.group and not _is_named(transfer) else ""
    used = phrase("first used in {place}", place=transfer.first_used) if transfer.first_used else ""
    return joined(FOLLOWED, (group, used))


def _is_named(transfer: BadTransfer) -> bool:
    """Whether the name of the communication contains its sender already: "PP recv from rank 5"."""
    return len(transfer.ranks) == 1 and transfer.by.endswith(f"from {name_ranks(transfer.sources)}")


def _beside(transfer: BadTransfer) -> str:
    words = BESIDE.format(who=name_ranks(transfer.ranks), by=transfer.by, sources=name_ranks(transfer.sources))
    if not transfer.gradients:
        return words
    return phrase("{words}: {gradients}", words=words, gradients=", ".join(transfer.gradients))
