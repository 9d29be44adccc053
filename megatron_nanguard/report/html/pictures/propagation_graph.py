"""How the fault spread, as nodes: one for each origin, and one for the ranks that the same message made bad.

A node stands in the column that says how many messages lie between it and the origin; nodes are in that order, and by
rank where it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from megatron_nanguard.records.incident import Incident, Origin
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.report.sections.propagation import (
    SHOWN_ORIGINS,
    Parent,
    Transfer,
    build_trees,
    later_transfers_of,
    transfers_of,
)

SHOWN_TRANSFERS: Final = 32
UNKNOWN_ORIGIN: Final = phrase("bad before the reduction")

State = Literal["origin", "bad", "infected"]


@dataclass(frozen=True)
class GraphNode:
    """One row of the picture.

    Attributes:
        state: of its ranks: where it began, bad before the reduction, or bad after it only.
        ranks: the ranks it stands for.
        words: where on them.
        column: how many messages lie between it and the beginning.
        transfer: how the bad values came; None where they began.
        steps: operators on the way from an origin to a gradient.
        source: number of the node that they came from; None where they began.
    """

    state: State
    ranks: tuple[int, ...]
    words: str
    column: int = 0
    transfer: Transfer | None = None
    steps: tuple[str, ...] = ()
    source: int | None = None

    @property
    def name(self) -> str:
        """The ranks in words."""
        return name_ranks(self.ranks)


@dataclass(frozen=True)
class GraphEdge:
    """One communication between two nodes.

    Attributes:
        source: number of the node that was bad.
        target: number of the node that it made bad, or more so.
        transfer: the communication.
        is_first: the target was not bad before it.
    """

    source: int
    target: int
    transfer: Transfer
    is_first: bool


@dataclass(frozen=True)
class PropagationGraph:
    """Everything that is drawn of an infection.

    Attributes:
        nodes: from top to bottom.
        edges: the communications between them.
        left_out: transfers of infection that are not in it.
    """

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    left_out: int


def propagation_graph(incident: Incident) -> PropagationGraph:
    """Lay out the infection.

    Args:
        incident: the merged incident.
    """
    transfers = transfers_of(incident)
    after, loose = build_trees(incident.origin, transfers[:SHOWN_TRANSFERS])
    nodes: list[GraphNode] = []
    for place, origin in enumerate(incident.origin[:SHOWN_ORIGINS]):
        nodes.append(_origin(origin))
        _add(nodes, after, after.get(place, []), incident)
    for sources in dict.fromkeys(transfer.sources for transfer in loose if transfer.sources):
        nodes.append(GraphNode("bad", sources, UNKNOWN_ORIGIN))
        _add(nodes, after, [transfer for transfer in loose if transfer.sources == sources], incident)
    ordered = _in_order(nodes)
    return PropagationGraph(ordered, (*_first(ordered), *_beside(incident, ordered)), len(transfers[SHOWN_TRANSFERS:]))


def _origin(origin: Origin) -> GraphNode:
    where: str = origin.operator
    if origin.module:
        where = phrase("{operator} in {module}", operator=where, module=origin.module)
    return GraphNode("origin", origin.members, where, steps=origin.path[1:])


def _add(
    nodes: list[GraphNode], after: Mapping[Parent, list[Transfer]], transfers: Sequence[Transfer], incident: Incident
) -> None:
    """Hang transfers, and everything that follows them, below the node that is the last one."""
    source = len(nodes) - 1
    for transfer in transfers:
        is_bad = set(transfer.ranks) <= set(incident.ranks.bad_before)
        column = nodes[source].column + 1
        nodes.append(
            GraphNode(
                "bad" if is_bad else "infected", transfer.ranks, transfer.first_used, column, transfer, source=source
            )
        )
        _add(nodes, after, after.get(transfer, []), incident)


def _in_order(nodes: Sequence[GraphNode]) -> tuple[GraphNode, ...]:
    order = sorted(range(len(nodes)), key=lambda index: (nodes[index].column, nodes[index].ranks))
    place: dict[int | None, int] = {index: position for position, index in enumerate(order)}
    return tuple(replace(nodes[index], source=place.get(nodes[index].source)) for index in order)


def _first(nodes: Sequence[GraphNode]) -> Iterator[GraphEdge]:
    """What made each node bad."""
    for target, node in enumerate(nodes):
        if node.transfer is not None and node.source is not None:
            yield GraphEdge(node.source, target, node.transfer, is_first=True)


def _beside(incident: Incident, nodes: Sequence[GraphNode]) -> Iterator[GraphEdge]:
    """Communications between ranks that were bad already."""
    node_of = {rank: number for number, node in enumerate(nodes) for rank in node.ranks}
    for transfer in later_transfers_of(incident)[:SHOWN_TRANSFERS]:
        source = next((node_of[rank] for rank in transfer.sources if rank in node_of), None)
        targets = dict.fromkeys(node_of[rank] for rank in transfer.ranks if rank in node_of)
        yield from (
            GraphEdge(source, target, transfer, is_first=False)
            for target in targets
            if source is not None and source != target
        )
