"""Make events of regions: what went into a call that can hide kernels, and what it has written when it ends.

No dispatcher sees a kernel that writes through a pointer. Its outputs are `empty` memory that is not empty any more, a
gradient that has changed, an argument that is another one afterwards. What the region got before says what went in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

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
from megatron_nanguard.tracing.places.nodes import cpp_function_name, gradient_names
from megatron_nanguard.tracing.recording.event_log import EventLog
from megatron_nanguard.tracing.recording.events import EventKind, Region, TracedEvent, TracedOutput, TracedRead
from megatron_nanguard.tracing.recording.nonfinite_flags import can_be_bad
from megatron_nanguard.tracing.recording.operators import NamedTensor
from megatron_nanguard.tracing.recording.reading import PendingMessages, TensorReader
from megatron_nanguard.tracing.recording.region_inputs import OpenRegion, RegionInputs, module_arguments, usable


class RegionRecorder:
    """Follows the calls of a pass, and looks at what goes into and comes out of those that can hide kernels.

    Attributes:
        inputs: what went into the regions.
    """

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
        self._here, self._external, self._calls = here, external, calls
        self._open: list[OpenRegion] = []
        self.inputs = RegionInputs(log, reader)
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
        opened = OpenRegion(call, region, self._here.is_traced)
        self._open.append(opened)
        self._log.region = region
        if not opened.is_traced:
            return
        if call.module is not None:
            region.arguments = partial(module_arguments, call, region.not_seen)
            return
        with self._looking():
            self.inputs.read(opened)

    def left(self, call: RunningCall, result: object) -> None:
        """Look at what a region has made, and hand it to the region around."""
        opened = self._close(call)
        if opened is None or not opened.is_traced:
            return
        with self._looking():
            outputs = list(usable(_named_results(call, result)))
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
                opened = OpenRegion(self._calls.current, Region("forward"), is_traced=True)
                for name, value in inputs.items():
                    self.inputs.go_in(opened, name, value)
                self.inputs.keep(ctx, opened)

    # -------------------------------------------------- Functions written in C++

    def cpp_node_created(self, node: Node) -> None:
        """Make a region of the backward of a Function written in C++. Its forward belongs to the module."""
        name = cpp_function_name(node)
        if not name or not self._here.is_traced:
            return
        self._reader.read_arguments(self._log.region)
        made = TracedRead("made before", None, tuple(self._log.region.made), TracedOutput(None, (), torch.float32))
        call = RunningCall("backward", f"{name}Backward")
        self.inputs.keep_for_node(call, (*self._log.region.reads, made))
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

    def _close(self, call: RunningCall) -> OpenRegion | None:
        for depth in range(len(self._open) - 1, -1, -1):
            if self._open[depth].call is call:
                opened = self._open[depth]
                del self._open[depth:]
                self._log.region = self._open[-1].region if self._open else self._step
                return opened
        return None

    def _look_at_all(self, opened: OpenRegion, outputs: list[NamedValue]) -> None:
        call, region = opened.call, opened.region
        if call.part == "backward":
            # What the backward has unpacked is in its variables now, also where that was computed again for it.
            found = [] if call.frame is None else list(usable(tensors_within(call.frame.f_locals)))
            # What it returns is read as an output. Memory may be handed out again and again: the dummy gradient that
            # Transformer Engine returns for weights of one shape.
            returned = {memory.data_ptr() for _, memory in outputs}
            self.inputs.add_older(region, [one for one in found if one[1].data_ptr() not in returned])
            for weight in self.inputs.weights(opened, found):
                self._look_at_main_grad(region, weight)
        self._arrive(region)
        is_output = {id(memory) for _, memory in outputs}
        handed = {id(one.memory): one for one in opened.handed}
        for name, memory in usable(opened.again):
            if isinstance(memory, Parameter) or (id(memory) in is_output and id(memory) not in handed):
                continue
            look = self._look(region, name, memory)
            one = handed.pop(id(memory), None)
            if one is not None:
                self.inputs.settle(one, look)
        for name, memory in outputs:
            self._look(region, name, memory)
        if call.part == "forward" and call.ctx is not None:
            self.inputs.keep(call.ctx, opened)

    def _look(self, region: Region, name: str, memory: Tensor) -> TracedEvent:
        """Add an event for a tensor that a region may have written.

        A buffer of a message under way gets an event without an output: in another pass the message may have arrived,
        and the numbers of events are the same in all passes.
        """
        under_way = self._reader.is_under_way(memory)
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
            for _, memory in usable([("", gradient)]):
                owned = self._external.owner(memory)
                name = owned.name.removeprefix(GRADIENT_OF) if owned is not None and owned.is_gradient else ""
                self._look(region, f"wgrad of {name}".rstrip(), memory)

    def _arrive(self, region: Region) -> None:
        """Look at messages that have arrived in the region: a kernel has read them, and may use the buffer again."""
        arrived, others = self._pending.since(region.first_event)
        self._pending.arrive([one for one in arrived if not self._external.holds(self._pending.buffer(one))])
        region.not_seen += (f"what {self._log.events[writer.event].operator} brought" for writer in others)


def _named_results(call: RunningCall, result: object) -> Iterator[NamedValue]:
    """Yield what a call returns: of a backward "grad of x", after the arguments of the forward."""
    if call.part != "backward":
        yield from tensors_within((result,) if isinstance(result, Tensor) else result)
        return
    names = [] if call.function is None else gradient_names(call.function)
    gradients = result if isinstance(result, tuple | list) else (result,)
    for index, gradient in enumerate(gradients):
        yield from tensors_within(gradient, names[index] if index < len(names) else f"grad of {index}")
