"""Make events of operators: who wrote what each of them reads, and whether what it wrote is finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._ops import OperatorBase

from megatron_nanguard.records.trace import TensorFacts
from megatron_nanguard.tensor_names import tensors_in
from megatron_nanguard.tracing.calls.call_stack import CallStack
from megatron_nanguard.tracing.places.current_place import CurrentPlace
from megatron_nanguard.tracing.places.external_tensors import ExternalTensors
from megatron_nanguard.tracing.places.step_place import StepPlace
from megatron_nanguard.tracing.recording.event_log import EventLog, EventObserver, StartedCall
from megatron_nanguard.tracing.recording.events import EventKind, TracedEvent
from megatron_nanguard.tracing.recording.lineage import memory_of
from megatron_nanguard.tracing.recording.messages import MessageRecorder
from megatron_nanguard.tracing.recording.nonfinite_flags import NonfiniteFlags
from megatron_nanguard.tracing.recording.operators import CallKind, NamedTensor, Operator, has_bad_constant
from megatron_nanguard.tracing.recording.reading import PendingMessages, TensorReader
from megatron_nanguard.tracing.recording.regions import RegionRecorder
from megatron_nanguard.tracing.recording.tensor_facts import number_facts


class EventRecorder:
    """Records one pass. Ordinary operators become events here, messages in a `MessageRecorder`.

    Call it only where the tracer does not trace the operators that it runs: inside `__torch_dispatch__`, or with all
    dispatch modes off.
    """

    def __init__(
        self,
        here: CurrentPlace,
        calls: CallStack,
        external: ExternalTensors,
        flags: NonfiniteFlags,
        observers: tuple[EventObserver, ...] = (),
    ) -> None:
        self.log = EventLog(flags, observers)
        self._here = here
        self.pending = PendingMessages(self.log, here)
        self.reader = TensorReader(self.log, self.pending, here, external)
        self._messages = MessageRecorder(self.log, self.reader, self.pending, here, external)
        self.regions = RegionRecorder(self.log, self.reader, self.pending, here, external, calls)
        self._operators: dict[OperatorBase, Operator] = {}

    def before(self, func: OperatorBase, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StartedCall | None:
        """Look at what an operator is about to read; None when the operator leaves no event."""
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = Operator.of(func)
        self._here.about_to_run(operator)
        if operator.kind is CallKind.MESSAGE:
            return self._messages.before(operator, func, args, kwargs)
        if not self._here.is_traced:
            self.reader.read_untraced(operator.reads(args, kwargs))
            return None
        if operator.kind is CallKind.EMPTY:
            event = TracedEvent(operator.label, EventKind.EMPTY, self._here.place(), [])
            return StartedCall(operator, func, args, kwargs, event)
        if operator.kind is CallKind.VIEW or self._messages.completes_message(operator, args):
            return None
        return self._before_operator(operator, func, args, kwargs)

    def after(self, call: StartedCall, result: Any) -> None:
        """Add the event, and look at what the operator wrote."""
        if call.collective is not None:
            self._messages.after(call.event, call.collective, result)
            return
        event = self.log.add(call.event)
        if event.kind is EventKind.EMPTY:
            memory = memory_of(result)
            if memory is not None:
                self.log.wrote(event, memory, None)
            return
        tensors = {id(tensor): tensor for _, tensor in tensors_in(result)}
        tensors.update((id(tensor), tensor) for tensor in call.operator.writes(call.args, call.kwargs))
        written = [memory for memory in map(memory_of, tensors.values()) if memory is not None]
        for memory in written:
            self.log.wrote(event, memory, self.log.flags.put(memory))
        for observer in self.log.observers:
            observer.after_operator(call, written, result)

    def look_at_gradient(self, name: str, gradient: Tensor, place: StepPlace, is_untraced: bool) -> None:
        """Add an event for a gradient that a fused kernel may have added to unseen.

        Args:
            name: of the event, such as "wgrad of decoder.layers.0.mlp.linear_fc1.weight".
            gradient: as it is after a backward step.
            place: of the event.
            is_untraced: the backward step was not traced.
        """
        reads = [self.reader.read(gradient, name)]
        event = TracedEvent(name, EventKind.LOOKED, place, reads, is_untraced=is_untraced)
        self.log.wrote(self.log.add(event), gradient, self.log.flags.put(gradient))

    def finish(self) -> None:
        """Look at the messages that were never read, then fetch all flags.

        Sync: one host read per dtype and device, and those of the regions and observers.
        """
        self.pending.finish()
        self.log.flags.read()
        self.regions.inputs.finish()
        for observer in self.log.observers:
            observer.finish()

    def _before_operator(
        self, operator: Operator, func: OperatorBase, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> StartedCall:
        tensors: list[NamedTensor] = []
        numbers: list[NamedTensor] = []
        for one in operator.reads(args, kwargs):
            (numbers if self.reader.is_number(one[2]) else tensors).append(one)
        self.regions.look_in_between(tensors)
        event = TracedEvent(
            operator.label,
            EventKind.OPERATOR,
            self._here.place(),
            self.reader.read_all(tensors),
            is_parallel=operator.parallel,
            other_facts=_bad_numbers(operator, args, kwargs, numbers),
        )
        call = StartedCall(operator, func, args, kwargs, event, tensors)
        for observer in self.log.observers:
            observer.before_operator(self.log.next_number, call)
        return call


def _bad_numbers(
    operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any], made_tensors: Iterable[NamedTensor]
) -> list[TensorFacts]:
    """The plain numbers that are NaN or Inf, with those that torch has made into tensors."""
    numbers = [(name, float(tensor)) for name, _, tensor in made_tensors]
    if has_bad_constant([*args, *kwargs.values()]):
        numbers += operator.bad_numbers(args, kwargs)
    return [number_facts(name, number) for name, number in numbers if not math.isfinite(number)]
