"""What a communication operator sends and receives: a `c10d::` operator, or a functional collective.

All members of a group, and both ends of a send, count their calls alike. Channel and running number therefore name the
same message on every rank, without any exchange between the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, distributed

from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.trace import Phase
from megatron_nanguard.tensor_names import tensors_in
from megatron_nanguard.tracing.recording.lineage import memory_of
from megatron_nanguard.tracing.recording.operators import NamedTensor, Operator

_IN_PLACE: Final = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_")
_REDUCTIONS: Final = ("allreduce", "all_reduce", "reduce", "_reduce_scatter")
_GATHERS: Final = ("allgather", "_allgather", "all_gather")

_NO_CHANNEL: Final = ("barrier", "monitored_barrier_", "batch_p2p_ops")
"""They carry no values; `batch_p2p_ops` is one call for several channels, which Megatron does not make."""


@dataclass(frozen=True)
class CollectiveCall:
    """A collective, send or receive that is about to start.

    Attributes:
        channel: between which ranks.
        number: of the call on this channel, from 0.
        ins: the tensors that this rank sends.
        outs: the buffers that what arrives is written into; None where the operator returns what arrives.
    """

    channel: Channel
    number: int
    ins: list[NamedTensor]
    outs: list[Tensor] | None

    @property
    def moved(self) -> list[Tensor]:
        """All tensors that are sent or overwritten."""
        return [*(self.outs or ()), *(tensor for _, _, tensor in self.ins)]


class CollectiveCalls:
    """Take communication operators apart, and count them per channel."""

    def __init__(self) -> None:
        self._counts: dict[Channel, int] = {}
        self._groups: dict[distributed.ProcessGroup, tuple[list[int], Channel]] = {}

    def next(self, operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CollectiveCall | None:
        """Count a call, and return what it sends and receives; None if it carries no values."""
        values = {**dict(zip(operator.arguments, args, strict=False)), **kwargs}
        group = _group(values)
        if group is None or operator.base in _NO_CHANNEL:
            return None
        ranks, channel = self._members(group)
        channel = _one_way(operator, values, ranks) or channel
        number = self._counts[channel] = self._counts.get(channel, -1) + 1
        ins, outs = _ins_and_outs(operator, values, ranks)
        columns = outs is None or len(ins) == len(outs)
        named = [(name, index if columns else None, tensor) for index, (name, tensor) in enumerate(ins)]
        return CollectiveCall(channel, number, named, outs)

    def _members(self, group: distributed.ProcessGroup) -> tuple[list[int], Channel]:
        """Return the global ranks of a group and its channel; kept, because a group can have many ranks."""
        if group not in self._groups:
            ranks = distributed.get_process_group_ranks(group)
            self._groups[group] = ranks, Channel.group(ranks)
        return self._groups[group]


def work_of(result: object) -> distributed.Work | None:
    """Return the work that an operator has started; None for a functional collective, and where torch cannot unbox it.

    It is the object that the caller gets, as long as one of them is kept.
    """
    work = result[-1] if isinstance(result, tuple | list) and result else result
    unbox = getattr(distributed.Work, "unbox", None)
    return unbox(work) if unbox is not None and isinstance(work, torch.ScriptObject) else None


def phase_of(operator: Operator) -> Phase:
    """Return the phase of a message that belongs to no micro-batch."""
    if operator.base.startswith(_GATHERS):
        return "gather"
    return "reduce" if operator.base.startswith(_REDUCTIONS) else "finalize"


def _group(values: Mapping[str, Any]) -> Any:
    """Return the process group of a call; a functional collective may give only its name."""
    group: Any = values.get("process_group", values.get("group_name"))
    if isinstance(group, str):
        # Its stub asks for a string type of its own; operators pass a plain str.
        resolve: Any = vars(distributed.distributed_c10d)["_resolve_process_group"]
        return resolve(group)
    return distributed.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group


def _one_way(operator: Operator, values: Mapping[str, Any], ranks: Sequence[int]) -> Channel | None:
    """Return the channel of a send or a receive; None for a collective."""
    if "dst" in values:
        return Channel.p2p(distributed.get_rank(), ranks[values["dst"]])
    if "src" in values and not operator.base.startswith("broadcast"):
        return Channel.p2p(ranks[values["src"]], distributed.get_rank())
    return None


def _ins_and_outs(
    operator: Operator, values: Mapping[str, Any], ranks: Sequence[int]
) -> tuple[list[tuple[str, Tensor]], list[Tensor] | None]:
    """Return what an operator sends, and the buffers that what arrives is written into.

    A functional collective sends the tensors of its first argument and returns what arrives: it has no buffers.
    """
    first, second = operator.arguments[:2]
    firsts = [(first, memory) for memory in _memories(values[first])]
    if operator.base in ("send", "isend"):
        return firsts, []
    buffers = None if operator.is_functional else [tensor for _, tensor in firsts]
    if operator.base.startswith(("recv", "irecv")):
        return [], buffers
    root = values.get("root_rank", values.get("src"))
    if operator.base.startswith("broadcast") and ranks[root] != distributed.get_rank():
        return [], buffers
    if operator.is_functional or operator.base in _IN_PLACE:
        return firsts, buffers
    return [(second, memory) for memory in _memories(values[second])], buffers


def _memories(values: object) -> list[Tensor]:
    """The memory of those tensors that can be looked at."""
    return [memory for _, tensor in tensors_in(values) if (memory := memory_of(tensor)) is not None]
