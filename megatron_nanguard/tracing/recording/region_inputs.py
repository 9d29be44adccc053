"""What goes into a region: its arguments, what its forward saved, and memory that it is to fill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from megatron_nanguard.tracing.calls.call_stack import RunningCall
from megatron_nanguard.tracing.calls.nested_tensors import NamedValue, tensors_within
from megatron_nanguard.tracing.places.nodes import argument_names
from megatron_nanguard.tracing.recording.event_log import EventLog
from megatron_nanguard.tracing.recording.events import Region, TracedEvent, TracedOutput, TracedRead
from megatron_nanguard.tracing.recording.lineage import memory_of
from megatron_nanguard.tracing.recording.nonfinite_flags import can_be_bad
from megatron_nanguard.tracing.recording.reading import TensorReader

_OWN: Final = "_megatron_nanguard"
_KEPT: Final = f"{_OWN}_kept"
_SAVED: Final = "saved"
"""Name of what a forward saves, until the backward gives it to a variable."""


class _Kept(NamedTuple):
    """What a backward needs to know of its forward; no tensors but parameters.

    Attributes:
        reads: what went into the forward, and what it saved.
        parameters: parameters among these; the backward may add to their gradients itself.
    """

    reads: tuple[TracedRead, ...] = ()
    parameters: tuple[Parameter, ...] = ()


class HandedMemory(NamedTuple):
    """Memory that nothing was seen filling, handed into a region: to be read there, or to be written.

    Attributes:
        read: the entry in the reads of the region.
        memory: the tensor.
        before: digest of its bits when the region began.
    """

    read: TracedRead
    memory: Tensor
    before: Tensor


class _Settled(NamedTuple):
    """Memory that was handed into a region which has ended.

    Attributes:
        read: the entry in the reads of the region.
        is_written: its bits have changed: the region wrote it, and did not read it. Bool [] on its device.
        look: the event at the end of the region.
    """

    read: TracedRead
    is_written: Tensor
    look: TracedEvent


@dataclass
class OpenRegion:
    """A region whose call runs.

    Attributes:
        call: the call.
        region: what the events refer to.
        is_traced: it began in the traced micro-batch.
        again: what went in, to be looked at once more in the end.
        handed: those of them that nothing was seen filling.
    """

    call: RunningCall
    region: Region
    is_traced: bool
    again: list[NamedValue] = field(default_factory=list)
    handed: list[HandedMemory] = field(default_factory=list)


class RegionInputs:
    """Reads what goes into the regions of a pass. Call it only where neither modes nor autograd see its operators."""

    def __init__(self, log: EventLog, reader: TensorReader) -> None:
        self._log, self._reader = log, reader
        self._settled: list[_Settled] = []
        self._kept_of: dict[RunningCall, _Kept] = {}

    def read(self, opened: OpenRegion) -> None:
        """Read the arguments of a Function; of a backward also what its forward kept, and what hangs on the context."""
        call = opened.call
        for name, value in call.arguments.items():
            self.go_in(opened, name, value)
        if call.part == "backward":
            opened.region.reads += self._kept(call).reads
            # Reading `saved_tensors` would run unpack hooks, which recompute or offload.
            for name, value in _state(call.ctx).items():
                self.go_in(opened, name, value)

    def go_in(self, opened: OpenRegion, name: str, value: object) -> None:
        """Read the tensors within an argument; one that cannot be walked costs itself alone."""
        region = opened.region
        for inner, memory in usable(tensors_within(value, name, region.not_seen)):
            is_filled = self._reader.is_filled(memory)
            region.reads.append(self._reader.went_in(memory, inner))
            opened.again.append((inner, memory))
            if not is_filled:
                opened.handed.append(HandedMemory(region.reads[-1], memory, _digest(memory)))

    def weights(self, opened: OpenRegion, found: Iterable[NamedValue]) -> list[Parameter]:
        """The parameters among the arguments of a backward, its variables, and what its forward got."""
        kept = self._kept(opened.call).parameters
        return list(dict.fromkeys((*_parameters(opened.again), *kept, *_parameters(found))))

    def add_older(self, region: Region, found: Iterable[NamedValue]) -> None:
        """Add what came from before the region to what went in; what is known as saved gets the name it has here."""
        known = {read.writers: index for index, read in enumerate(region.reads)}
        for name, memory in found:
            writers, _ = self._log.lineage.read(memory)
            older = tuple(writer for writer in writers if writer.event < region.first_event)
            index = known.get(older)
            if older and index is None:
                known[older] = len(region.reads)
                region.reads.append(TracedRead(name, None, older, TracedOutput.of(memory, None)))
            elif index is not None and region.reads[index].name.startswith(f"{_SAVED}."):
                region.reads[index] = region.reads[index]._replace(name=name)

    def settle(self, handed: HandedMemory, look: TracedEvent) -> None:
        """Compare the bits of memory that was handed into a region which ends; `finish` reads the outcome.

        Args:
            handed: as it was when the region began.
            look: the event of the look at it in the end.
        """
        self._settled.append(_Settled(handed.read, _digest(handed.memory) != handed.before, look))

    def finish(self) -> None:
        """Take what a region wrote out of what went into it.

        Sync: one host read for each tensor that was handed into a region before anything was seen filling it.
        """
        written: set[int] = set()
        for settled in self._settled:
            if settled.is_written:
                settled.look.reads.clear()
                written.add(id(settled.read))
        regions = {event.region for event in self._log.events if event.region is not None} if written else ()
        for region in regions:
            region.reads[:] = [read for read in region.reads if id(read) not in written]

    def keep(self, ctx: Any, opened: OpenRegion) -> None:
        """Note on the context of a forward what went in and who wrote what it saves.

        What is saved stands for the argument in the same memory: a kernel may have written it in place.
        """
        names = {_address(memory): name for name, memory in opened.again}
        saved = {
            _address(memory): (names.get(_address(memory), name), memory)
            for name, memory in usable(tensors_within({_SAVED: getattr(ctx, "to_save", None) or ()}))
        }
        given = [
            read
            for read, (_, memory) in zip(opened.region.reads, opened.again, strict=True)
            if _address(memory) not in saved
        ]
        given += [
            self._reader.read(memory, name) for name, memory in saved.values() if not self._reader.is_under_way(memory)
        ]
        weights = _parameters((*opened.again, *saved.values()))
        _state_of(ctx)[_KEPT] = _Kept(tuple(given), tuple(dict.fromkeys(weights)))

    def keep_for_node(self, call: RunningCall, reads: Iterable[TracedRead]) -> None:
        """Note what the forward of a Function written in C++ can have got, for the call of its backward."""
        self._kept_of[call] = _Kept(tuple(reads))

    def _kept(self, call: RunningCall) -> _Kept:
        kept: _Kept = _state_of(call.ctx).get(_KEPT) or self._kept_of.get(call) or _Kept()
        return kept


def usable(named: Iterable[NamedValue]) -> Iterator[NamedValue]:
    """Yield those tensors that can hold NaN or Inf, as memory that can be looked at."""
    for name, tensor in named:
        try:
            memory = memory_of(tensor)
        except (RuntimeError, NotImplementedError):
            continue
        if memory is not None and can_be_bad(memory):
            yield name, memory


def module_arguments(call: RunningCall, not_seen: list[str]) -> Iterator[NamedValue]:
    """Yield what went into a module, with its own parameters and buffers."""
    assert call.module is not None
    names = argument_names(call.module.forward)
    args = {(names[i] if i < len(names) else f"args.{i}"): value for i, value in enumerate(call.arguments["args"])}
    own = {**call.module._parameters, **call.module._buffers}
    return tensors_within({**args, **call.arguments.get("kwargs", {}), **own}, "", not_seen)


def _state_of(ctx: Any) -> dict[str, Any]:
    """The attributes of a context; of none where there is no context."""
    return vars(ctx) if hasattr(ctx, "__dict__") else {}


def _state(ctx: Any) -> dict[str, Any]:
    """What hangs on a context, without what this package has put there."""
    return {name: value for name, value in _state_of(ctx).items() if not name.startswith(_OWN)}


def _parameters(named: Iterable[NamedValue]) -> list[Parameter]:
    return [memory for _, memory in named if isinstance(memory, Parameter)]


def _address(tensor: Tensor) -> tuple[int, int]:
    """Where the elements of a tensor lie; the same for a view of all of them."""
    return tensor.data_ptr(), tensor.numel()


def _digest(tensor: Tensor) -> Tensor:
    """A number that changes with the bits of a tensor, on its device: int64 []."""
    values = tensor.detach().resolve_conj().resolve_neg()
    if not values.is_contiguous():
        values = values.contiguous()
    return values.view(-1).view(torch.uint8).sum(dtype=torch.int64)
