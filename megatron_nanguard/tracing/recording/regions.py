"""Make events of regions: what went into a call that can hide kernels, and what it has written when it ends.

No dispatcher sees a kernel that writes through a pointer. Its outputs are `empty` memory that is not empty any more, a
gradient that has changed, an argument that is another one afterwards. What the region got before says what went in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes

from megatron_nanguard.records.trace import GRADIENT_OF
from megatron_nanguard.tracing.calls.call_stack import CallStack, RunningCall
from megatron_nanguard.tracing.calls.nested_tensors import NamedValue, tensors_within
from megatron_nanguard.tracing.places.current_place import CurrentPlace
from megatron_nanguard.tracing.places.external_tensors import ExternalTensors
from megatron_nanguard.tracing.places.nodes import argument_names, cpp_function_name, gradient_names
from megatron_nanguard.tracing.recording.event_log import EventLog
from megatron_nanguard.tracing.recording.events import EventKind, Region, TracedEvent, TracedOutput, TracedRead
from megatron_nanguard.tracing.recording.lineage import memory_of
from megatron_nanguard.tracing.recording.nonfinite_flags import can_be_bad
from megatron_nanguard.tracing.recording.operators import NamedTensor
from megatron_nanguard.tracing.recording.reading import PendingMessages, TensorReader

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


class _Handed(NamedTuple):
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
    """Memory handed into a region that has ended: if its bits have changed, the region wrote it and did not read it."""

    read: TracedRead
    before: Tensor
    after: Tensor
    look: TracedEvent


@dataclass
class _OpenRegion:
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
    handed: list[_Handed] = field(default_factory=list)


class RegionRecorder:
    """Follows the calls of a pass, and looks at what goes into and comes out of those that can hide kernels."""

    def __init__(
        self,
        log: EventLog,
        reader: TensorReader,
        pending: PendingMessages,
        here: CurrentPlace,
        external: ExternalTensors,
        calls: CallStack,
    ) -> None:
        self._log, self._reader, self._pending = log, reader, pending
        self._is_under_way = reader.is_under_way
        self._here, self._external, self._calls = here, external, calls
        self._open: list[_OpenRegion] = []
        self._settled: list[_Settled] = []
        self._kept_of: dict[RunningCall, _Kept] = {}
        self._step = log.region

    @contextmanager
    def at_step(self) -> Iterator[None]:
        """Enter this around a forward or backward step of the schedule: what is around all calls in it."""
        outer = self._step, self._log.region
        self._step = self._log.region = Region("step")
        try:
            yield
        finally:
            self._step, self._log.region = outer

    # ------------------------------------------------------------- as CallListener

    def entered(self, call: RunningCall) -> None:
        """Read what goes into a Function. What goes into a module is read when a kernel in it has written unseen."""
        region = Region(call.part, call.name, self._log.next_number)
        opened = _OpenRegion(call, region, self._here.is_traced)
        self._open.append(opened)
        self._log.region = region
        if not opened.is_traced:
            return
        if call.module is not None:
            region.arguments = partial(_module_arguments, call, region.not_seen)
            return
        with self._looking():
            for name, value in call.arguments.items():
                self._go_in(opened, name, value)
            if call.part == "backward":
                kept = self._kept(call)
                region.reads += kept.reads
                # Reading `saved_tensors` would run unpack hooks, which recompute or offload.
                for name, value in _state(call.ctx).items():
                    self._go_in(opened, name, value)

    def left(self, call: RunningCall, result: object) -> None:
        """Look at what a region has made, and hand it to the region around."""
        opened = self._close(call)
        if opened is None or not opened.is_traced:
            return
        with self._looking():
            outputs = list(self._usable(_named_results(call, result)))
            if call.is_function:
                self._look_at_all(opened, outputs)
            elif opened.region.arguments is not None:
                for name, memory in outputs:
                    if not self._reader.is_filled(memory):
                        self._reader.read(memory, name)
            if call.part != "backward":
                for _, memory in outputs:
                    writers, _ = self._log.lineage.read(memory)
                    self._log.hand_on(writers, self._log.region, in_backward=self._here.is_in_backward)
        opened.region.arguments = None

    def raised(self, call: RunningCall) -> None:
        """Forget a region that ended by an exception; it made nothing."""
        opened = self._close(call)
        if opened is not None:
            opened.region.arguments = None

    def context_is_set_up(self, ctx: Any, inputs: Mapping[str, object]) -> None:
        """Note what a Function saves whose forward has no context."""
        if self._here.is_traced:
            with self._looking():
                opened = _OpenRegion(self._calls.current, Region("forward"), is_traced=True)
                for name, value in inputs.items():
                    self._go_in(opened, name, value)
                self._keep(ctx, opened)

    # -------------------------------------------------- Functions written in C++

    def cpp_node_created(self, node: Node) -> None:
        """Make a region of the backward of a Function written in C++. Its forward belongs to the module."""
        name = cpp_function_name(node)
        if not name or not self._here.is_traced:
            return
        self._reader.read_arguments(self._log.region)
        made = TracedRead("made before", None, tuple(self._log.region.made), TracedOutput(None, (), torch.float32))
        call = RunningCall("backward", f"{name}Backward")
        self._kept_of[call] = _Kept((*self._log.region.reads, made))
        node.register_prehook(partial(self._cpp_started, call))
        node.register_hook(partial(self._cpp_returned, call))

    def _cpp_started(self, call: RunningCall, incoming: tuple[Tensor, ...]) -> None:
        call.arguments = {"incoming": incoming}
        self._calls.push(call)

    def _cpp_returned(self, call: RunningCall, gradients: tuple[Tensor, ...], incoming: object) -> None:
        self._calls.pop(call, gradients)
        call.arguments = {}

    # ----------------------------------------------------------------- for others

    def look_in_between(self, named: Iterable[NamedTensor]) -> None:
        """Look again at what an operator in a Function is about to read: a kernel may have written it since."""
        region = self._log.region
        if not region.is_function:
            return
        seen_writing = (EventKind.OPERATOR, EventKind.LOOKED)
        for name, _, tensor in named:
            if can_be_bad(tensor) and not isinstance(tensor, Parameter):
                writers, _ = self._log.lineage.read(tensor)
                if writers and all(self._log.events[writer.event].kind in seen_writing for writer in writers):
                    self._look(region, name, tensor)

    def finish(self) -> None:
        """Take what a region wrote out of what went into it.

        Sync: one host read for each tensor that was handed into a region before anything was seen filling it.
        """
        written: set[int] = set()
        for settled in self._settled:
            if int(settled.before) != int(settled.after):
                settled.look.reads.clear()
                written.add(id(settled.read))
        regions = {event.region for event in self._log.events if event.region is not None} if written else ()
        for region in regions:
            region.reads[:] = [read for read in region.reads if id(read) not in written]

    # -------------------------------------------------------------------- looking

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Run operators of ours: neither modes nor autograd see them, and no region makes what they look at."""
        self._log.is_looking = True
        try:
            with _disable_current_modes(), torch.no_grad():
                yield
        finally:
            self._log.is_looking = False

    def _close(self, call: RunningCall) -> _OpenRegion | None:
        for depth in range(len(self._open) - 1, -1, -1):
            if self._open[depth].call is call:
                opened = self._open[depth]
                del self._open[depth:]
                self._log.region = self._open[-1].region if self._open else self._step
                return opened
        return None

    def _usable(self, named: Iterable[NamedValue]) -> Iterator[NamedValue]:
        """Yield those tensors that can hold NaN or Inf, as memory that can be looked at."""
        for name, tensor in named:
            try:
                memory = memory_of(tensor)
            except (RuntimeError, NotImplementedError):
                continue
            if memory is not None and can_be_bad(memory):
                yield name, memory

    def _go_in(self, opened: _OpenRegion, name: str, value: object) -> None:
        """Read the tensors within an argument; one that cannot be walked costs itself alone."""
        region = opened.region
        for inner, memory in self._usable(tensors_within(value, name, region.not_seen)):
            is_filled = self._reader.is_filled(memory)
            region.reads.append(self._reader.went_in(memory, inner))
            opened.again.append((inner, memory))
            if not is_filled:
                opened.handed.append(_Handed(region.reads[-1], memory, _digest(memory)))

    def _look_at_all(self, opened: _OpenRegion, outputs: list[NamedValue]) -> None:
        call, region = opened.call, opened.region
        weights = _parameters(opened.again)
        if call.part == "backward":
            # What the backward has unpacked is in its variables now, also where that was computed again for it.
            found = [] if call.frame is None else list(self._usable(tensors_within(call.frame.f_locals)))
            # What it returns is read as an output. Memory may be handed out again and again: the dummy gradient that
            # Transformer Engine returns for weights of one shape.
            returned = {memory.data_ptr() for _, memory in outputs}
            self._add_older(region, [one for one in found if one[1].data_ptr() not in returned])
            for weight in dict.fromkeys((*weights, *self._kept(call).parameters, *_parameters(found))):
                self._look_at_main_grad(region, weight)
        self._arrive(region)
        is_output = {id(memory) for _, memory in outputs}
        handed = {id(one.memory): one for one in opened.handed}
        for name, memory in self._usable(opened.again):
            if isinstance(memory, Parameter) or (id(memory) in is_output and id(memory) not in handed):
                continue
            look = self._look(region, name, memory)
            one = handed.pop(id(memory), None)
            if one is not None:
                self._settled.append(_Settled(one.read, one.before, _digest(memory), look))
        for name, memory in outputs:
            self._look(region, name, memory)
        if call.part == "forward" and call.ctx is not None:
            self._keep(call.ctx, opened)

    def _add_older(self, region: Region, found: Iterable[NamedValue]) -> None:
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

    def _look(self, region: Region, name: str, memory: Tensor) -> TracedEvent:
        """Add an event for a tensor that a region may have written.

        A buffer of a message under way gets an event without an output: in another pass the message may have arrived,
        and the numbers of events are the same in all passes.
        """
        under_way = self._is_under_way(memory)
        # Unknown memory is no tensor from before the trace: a kernel may have allocated it unseen.
        is_known = not under_way and self._log.lineage.is_known(memory)
        reads = [self._reader.read(memory, name)] if is_known else []
        event = self._log.add(TracedEvent(region.name, EventKind.LOOKED, self._here.place(), reads, region=region))
        if not under_way:
            writer = self._log.wrote(event, memory, self._log.flags.put(memory))
            self._log.output_names[writer] = name
        return event

    def _look_at_main_grad(self, region: Region, weight: Parameter) -> None:
        """Look at the gradient that a backward may have added to itself (fused accumulation)."""
        gradient = getattr(weight, "main_grad", None)
        if isinstance(gradient, Tensor):
            for _, memory in self._usable([("", gradient)]):
                owned = self._external.owner(memory)
                name = owned.name.removeprefix(GRADIENT_OF) if owned is not None and owned.is_gradient else ""
                self._look(region, f"wgrad of {name}".rstrip(), memory)

    def _arrive(self, region: Region) -> None:
        """Look at messages that have arrived in the region: a kernel has read them, and may use the buffer again."""
        arrived, others = self._pending.since(region.first_event)
        self._pending.arrive(writer for writer in arrived if not self._external.holds(self._pending.buffer(writer)))
        region.not_seen += (f"what {self._log.events[writer.event].operator} brought" for writer in others)

    def _kept(self, call: RunningCall) -> _Kept:
        kept: _Kept = _state_of(call.ctx).get(_KEPT) or self._kept_of.get(call) or _Kept()
        return kept

    def _keep(self, ctx: Any, opened: _OpenRegion) -> None:
        """Note on the context of a forward what went in and who wrote what it saves.

        What is saved stands for the argument in the same memory: a kernel may have written it in place.
        """
        names = {_address(memory): name for name, memory in opened.again}
        saved = {
            _address(memory): (names.get(_address(memory), name), memory)
            for name, memory in self._usable(tensors_within({_SAVED: getattr(ctx, "to_save", None) or ()}))
        }
        given = [
            read
            for read, (_, memory) in zip(opened.region.reads, opened.again, strict=True)
            if _address(memory) not in saved
        ]
        given += [self._reader.read(memory, name) for name, memory in saved.values() if not self._is_under_way(memory)]
        weights = _parameters((*opened.again, *saved.values()))
        _state_of(ctx)[_KEPT] = _Kept(tuple(given), tuple(dict.fromkeys(weights)))


def _state_of(ctx: Any) -> dict[str, Any]:
    """The attributes of a context; of none where there is no context."""
    return vars(ctx) if hasattr(ctx, "__dict__") else {}


def _state(ctx: Any) -> dict[str, Any]:
    """What hangs on a context, without what this package has put there."""
    return {name: value for name, value in _state_of(ctx).items() if not name.startswith(_OWN)}


def _module_arguments(call: RunningCall, not_seen: list[str]) -> Iterator[NamedValue]:
    """Yield what went into a module, with its own parameters and buffers."""
    assert call.module is not None
    names = argument_names(call.module.forward)
    args = {(names[i] if i < len(names) else f"args.{i}"): value for i, value in enumerate(call.arguments["args"])}
    own = {**call.module._parameters, **call.module._buffers}
    return tensors_within({**args, **call.arguments.get("kwargs", {}), **own}, "", not_seen)


def _named_results(call: RunningCall, result: object) -> Iterator[NamedValue]:
    """Yield what a call returns: of a backward "grad of x", after the arguments of the forward."""
    if call.part != "backward":
        yield from tensors_within((result,) if isinstance(result, Tensor) else result)
        return
    names = [] if call.function is None else gradient_names(call.function)
    gradients = result if isinstance(result, tuple | list) else (result,)
    for index, gradient in enumerate(gradients):
        yield from tensors_within(gradient, names[index] if index < len(names) else f"grad of {index}")


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
