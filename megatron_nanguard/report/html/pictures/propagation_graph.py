"""The propagation graph: a node for each origin and for the ranks that one communication made bad.

The column of a node is the number of messages between it and the origin. Nodes are in the order of their columns, and
by rank within a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.report.formatting import call_words
from megatron_nanguard.report.sections.propagation import SHOWN_ORIGINS, BadTransfer, Parent, build_trees, transfers_of

SHOWN_TRANSFERS: Final = 32
State = Literal["origin", "bad", "infected"]


@dataclass(frozen=True)
class GraphNode:
    """Ranks that became bad together; a row of the picture.

    Attributes:
        state: whether its ranks have the origin, were bad before the reduction, or only after it.
        ranks: the ranks.
        words: where they used or made bad values first.
        column: number of messages between it and the origin.
        transfer: the communication that made the ranks bad; None for the first nodes.
        steps: operators from an origin to a gradient on its rank.
        source: index of the node that the transfer came from; None for the first nodes.
    """

    state: State
    ranks: tuple[int, ...]
    words: str
    column: int = 0
    transfer: BadTransfer | None = None
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
        source: index of the node that sent bad values.
        target: index of the node that received them.
        transfer: the communication.
        is_first: whether the target was not bad before it.
    """

    source: int
    target: int
    transfer: BadTransfer
    is_first: bool


@dataclass(frozen=True)
class PropagationGraph:
    """All nodes and edges.

    Attributes:
        nodes: the nodes from top to bottom.
        edges: the communications between them.
        left_out: number of transfers that the graph leaves out.
    """

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    left_out: int


def propagation_graph(incident: Incident) -> PropagationGraph:
    """Build the graph of an incident.

    Args:
        incident: the merged incident.
    """
    transfers = transfers_of(incident.infected)
    after, loose = build_trees(incident.origin, transfers[:SHOWN_TRANSFERS])
    nodes: list[GraphNode] = []
    for index, origin in enumerate(incident.origin[:SHOWN_ORIGINS]):
        nodes.append(GraphNode("origin", origin.members, call_words(origin), steps=origin.path[1:]))
        _add(nodes, after, after.get(index, []), incident)
    for sources in dict.fromkeys(transfer.sources for transfer in loose if transfer.sources):
        nodes.append(GraphNode("bad", sources, phrase("bad before the reduction")))
        _add(nodes, after, [transfer for transfer in loose if transfer.sources == sources], incident)
    ordered = _in_order(nodes)
    return PropagationGraph(
        ordered, (*_first_edges(ordered), *_later_edges(incident, ordered)), len(transfers[SHOWN_TRANSFERS:])
    )


def _add(
    nodes: list[GraphNode],
    after: Mapping[Parent, list[BadTransfer]],
    transfers: Sequence[BadTransfer],
    incident: Incident,
) -> None:
    """Append a node for each transfer from the last node, and for all transfers that follow them."""
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
    new_index: dict[int | None, int] = {index: position for position, index in enumerate(order)}
    return tuple(replace(nodes[index], source=new_index.get(nodes[index].source)) for index in order)


def _first_edges(nodes: Sequence[GraphNode]) -> Iterator[GraphEdge]:
    """Yield the communication that made each node bad."""
    for target, node in enumerate(nodes):
        if node.transfer is not None and node.source is not None:
            yield GraphEdge(node.source, target, node.transfer, is_first=True)


def _later_edges(incident: Incident, nodes: Sequence[GraphNode]) -> Iterator[GraphEdge]:
    """Yield the communications to ranks that were bad already."""
    node_of = {rank: number for number, node in enumerate(nodes) for rank in node.ranks}
    for transfer in transfers_of(incident.also_infected)[:SHOWN_TRANSFERS]:
        source = next((node_of[rank] for rank in transfer.sources if rank in node_of), None)
        targets = dict.fromkeys(node_of[rank] for rank in transfer.ranks if rank in node_of)
        yield from (
            GraphEdge(source, target, transfer, is_first=False)
            for target in targets
            if source is not None and source != target
        )
