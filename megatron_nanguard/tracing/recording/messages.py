"""Communication as the dispatcher sees it: `c10d::` operators, whatever Python name called them, and functional ones.

Sender and receiver, and all members of a group, count alike: channel and running number name a message on every rank
without a word exchanged. An operator only starts the work, so what arrived is looked at when it is first read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, distributed

from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.trace import Phase
from megatron_nanguard.tensor_names import tensors_in
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.operators import Operator

_IN_PLACE: Final = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_")
_REDUCTIONS: Final = ("allreduce", "all_reduce", "reduce", "_reduce_scatter")
_GATHERS: Final = ("allgather", "_allgather", "all_gather")

_NO_CHANNEL: Final = ("barrier", "monitored_barrier_", "batch_p2p_ops")
"""Those that carry no values, and one call for sends and receives of several channels, which Megatron does not make."""

Named = tuple[str, "int | None", Tensor]


@dataclass(frozen=True)
class CollectiveCall:
    """A communication that is about to start.

    Attributes:
        channel: between which ranks.
        number: of the communication on this channel, from 0.
        ins: what this rank puts in, named and with the place in its list.
        outs: what is overwritten by what arrives; None where it arrives in what the operator returns.
    """

    channel: Channel
    number: int
    ins: list[Named]
    outs: list[Tensor] | None


class Messages:
    """Counts messages, and holds the buffers of those that may still be under way."""

    def __init__(self) -> None:
        self.pending: dict[Writer, Tensor] = {}
        self._counts: dict[Channel, int] = {}
        self._groups: dict[distributed.ProcessGroup, tuple[list[int], Channel]] = {}

    def call(self, operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CollectiveCall | None:
        """Take an operator apart that communicates, and count it; None when it carries no values."""
        values = {**dict(zip(operator.arguments, args, strict=False)), **kwargs}
        group = _group(values)
        if group is None or operator.base in _NO_CHANNEL:
            return None
        ranks, channel = self._members(group)
        channel = _one_way(operator, values, ranks) or channel
        number = self._counts[channel] = self._counts.get(channel, -1) + 1
        first, second = operator.arguments[:2]
        if operator.is_functional:
            ins, outs = _functional(operator, values, first, ranks)
        else:
            ins, outs = _ins_and_outs(operator, values, first, second, ranks)
        columns = outs is None or len(ins) == len(outs)
        named = [(name, index if columns else None, tensor) for index, (name, tensor) in enumerate(ins)]
        return CollectiveCall(channel, number, named, outs)

    def _members(self, group: distributed.ProcessGroup) -> tuple[list[int], Channel]:
        """Global ranks of a group; read once, they may be many."""
        if group not in self._groups:
            ranks = distributed.get_process_group_ranks(group)
            self._groups[group] = ranks, Channel.group(ranks)
        return self._groups[group]

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


def _group(values: Mapping[str, Any]) -> Any:
    """The process group of a call; functional ones may know it by its name alone."""
    group: Any = values.get("process_group", values.get("group_name"))
    if isinstance(group, str):
        # Its types ask for a name of a class of its own; what an operator gets is a plain str.
        resolve: Any = vars(distributed.distributed_c10d)["_resolve_process_group"]
        return resolve(group)
    return distributed.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group


def _one_way(operator: Operator, values: Mapping[str, Any], ranks: Sequence[int]) -> Channel | None:
    """The channel of a send or a receive; None for a collective."""
    if "dst" in values:
        return Channel.p2p(distributed.get_rank(), ranks[values["dst"]])
    if "src" in values and not operator.base.startswith("broadcast"):
        return Channel.p2p(ranks[values["src"]], distributed.get_rank())
    return None


def _ins_and_outs(
    operator: Operator, values: Mapping[str, Any], first: str, second: str, ranks: Sequence[int]
) -> tuple[list[tuple[str, Tensor]], list[Tensor]]:
    firsts = [(first, tensor) for _, tensor in tensors_in(values[first])]
    buffers = [tensor for _, tensor in firsts]
    if operator.base == "send":
        return firsts, []
    if operator.base.startswith("recv"):
        return [], buffers
    if operator.base not in _IN_PLACE:
        return [(second, tensor) for _, tensor in tensors_in(values[second])], buffers
    is_receiver = operator.base == "broadcast_" and ranks[values["root_rank"]] != distributed.get_rank()
    return [] if is_receiver else firsts, buffers


def _functional(
    operator: Operator, values: Mapping[str, Any], first: str, ranks: Sequence[int]
) -> tuple[list[tuple[str, Tensor]], list[Tensor] | None]:
    """Everything goes in by the first argument and comes out by the result, one tensor for each."""
    firsts = [(first, tensor) for _, tensor in tensors_in(values[first])]
    if operator.base == "isend":
        return firsts, []
    is_broadcast = operator.base.startswith("broadcast")
    is_receiver = operator.base == "irecv" or (is_broadcast and ranks[values["src"]] != distributed.get_rank())
    return [] if is_receiver else firsts, None


def can_hold_values(tensor: Tensor) -> bool:
    """Whether a message's buffer is worth a look when it arrives."""
    return tensor.is_floating_point() and tensor.layout == torch.strided
