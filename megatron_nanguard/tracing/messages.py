"""Communication as the dispatcher sees it: `c10d::` operators, whatever Python name called them.

Sender and receiver, and all members of a group, count alike: channel and running number name a message on every rank
without a word exchanged. An operator only starts the work, so what arrived is looked at when it is first read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, distributed

from megatron_nanguard.records.trace import Phase
from megatron_nanguard.tracing.lineage import Writer
from megatron_nanguard.tracing.schema import Operator, tensors

_IN_PLACE: Final = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_")
_REDUCTIONS: Final = ("allreduce", "reduce", "_reduce_scatter")
_GATHERS: Final = ("allgather", "_allgather")

Named = tuple[str, "int | None", Tensor]


@dataclass(frozen=True)
class Call:
    """A communication that is about to start.

    Attributes:
        channel: ("group", ranks...) or ("p2p", source, destination), in global ranks.
        number: of the communication on this channel, from 0.
        ins: what this rank puts in, named and with the place in its list.
        outs: what is overwritten by what arrives.
    """

    channel: tuple[str, ...]
    number: int
    ins: list[Named]
    outs: list[Tensor]


class Messages:
    """Counts messages, and holds the buffers of those that may still be under way."""

    def __init__(self) -> None:
        self.pending: dict[Writer, Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def call(self, operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
        """Take a `c10d::` operator apart and count it; None when it carries no values."""
        values = {**dict(zip(operator.arguments, args, strict=False)), **kwargs}
        group = values.get("process_group")
        if group is None or operator.base.endswith("barrier_") or operator.base == "barrier":
            return None
        ranks = distributed.get_process_group_ranks(distributed.ProcessGroup.unbox(group))
        channel = _channel(values, ranks)
        number = self._counts[channel] = self._counts.get(channel, -1) + 1
        first, second = operator.arguments[:2]
        ins, outs = _ins_and_outs(operator, values, first, second, ranks)
        columns = len(ins) == len(outs)
        named = [(name, index if columns else None, tensor) for index, (name, tensor) in enumerate(ins)]
        return Call(channel, number, named, outs)

    def started(self, writer: Writer, buffer: Tensor) -> None:
        """Remember the buffer until somebody reads it."""
        self.pending[writer] = buffer.detach()

    def arrived(self, writers: Iterable[Writer]) -> Iterator[tuple[Writer, Tensor]]:
        """Forget the pending ones among the writers of a tensor that is about to be read; by now they have arrived."""
        for writer in writers:
            if writer in self.pending:
                yield writer, self.pending.pop(writer)

    def all_arrived(self) -> Iterator[tuple[Writer, Tensor]]:
        """Forget all, at the end of the pass."""
        yield from self.arrived(list(self.pending))


def phase_of(operator: Operator) -> Phase:
    """The phase of a message that belongs to no micro-batch."""
    if operator.base.startswith(_GATHERS):
        return "gather"
    return "reduce" if operator.base.startswith(_REDUCTIONS) else "finalize"


def _channel(values: Mapping[str, Any], ranks: Sequence[int]) -> tuple[str, ...]:
    me = str(distributed.get_rank())
    if "dst" in values:
        return ("p2p", me, str(ranks[values["dst"]]))
    if "src" in values:
        return ("p2p", str(ranks[values["src"]]), me)
    return ("group", *map(str, ranks))


def _ins_and_outs(
    operator: Operator, values: Mapping[str, Any], first: str, second: str, ranks: Sequence[int]
) -> tuple[list[tuple[str, Tensor]], list[Tensor]]:
    firsts = [(first, tensor) for _, tensor in tensors(values[first])]
    buffers = [tensor for _, tensor in firsts]
    if operator.base == "send":
        return firsts, []
    if operator.base.startswith("recv"):
        return [], buffers
    if operator.base not in _IN_PLACE:
        return [(second, tensor) for _, tensor in tensors(values[second])], buffers
    is_receiver = operator.base == "broadcast_" and ranks[values["root_rank"]] != distributed.get_rank()
    return [] if is_receiver else firsts, buffers


def can_hold_values(tensor: Tensor) -> bool:
    """Whether a message's buffer is worth a look when it arrives."""
    return tensor.is_floating_point() and tensor.layout == torch.strided
