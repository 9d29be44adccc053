"""Make events of messages: flag what a rank sends before the call, and what it receives when that is first read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OperatorBase

from megatron_nanguard.records.trace import MessageContents
from megatron_nanguard.tensor_names import tensors_in
from megatron_nanguard.tracing.places.current_place import CurrentPlace
from megatron_nanguard.tracing.places.external_tensors import ExternalTensors
from megatron_nanguard.tracing.recording.collective_calls import CollectiveCall, CollectiveCalls, phase_of, work_of
from megatron_nanguard.tracing.recording.event_log import EventLog, StartedCall
from megatron_nanguard.tracing.recording.events import EventKind, Sent, TracedEvent
from megatron_nanguard.tracing.recording.lineage import memory_of
from megatron_nanguard.tracing.recording.nonfinite_flags import can_be_bad
from megatron_nanguard.tracing.recording.operators import Operator
from megatron_nanguard.tracing.recording.reading import PendingMessages, TensorReader


class MessageRecorder:
    """Makes events of communication operators."""

    def __init__(
        self,
        log: EventLog,
        reader: TensorReader,
        pending: PendingMessages,
        here: CurrentPlace,
        external: ExternalTensors,
    ) -> None:
        self._log, self._reader, self._pending = log, reader, pending
        self._here, self._external = here, external
        self._calls = CollectiveCalls()

    def before(
        self, operator: Operator, func: OperatorBase, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> StartedCall | None:
        """Look at what this rank is about to send; None when the message leaves no event.

        Messages in the model's memory leave one also where the step is not traced: they carry gradients and weights.
        """
        call = self._calls.next(operator, args, kwargs)
        if call is None or not (self._here.is_traced or any(map(self._external.holds, call.moved))):
            return None
        # An all-reduce in place overwrites what was sent: take the flags before the call.
        reads = self._reader.read_all(call.ins)
        slots = [self._log.flags.put(tensor) for _, _, tensor in call.ins if can_be_bad(tensor)]
        event = TracedEvent(
            operator.label,
            EventKind.MESSAGE,
            self._here.place(phase_of(operator)),
            reads,
            is_untraced=not self._here.is_traced,
            sent=Sent(call.channel, call.number, slots),
            carries=self._contents(call),
        )
        started = StartedCall(operator, func, args, kwargs, event, collective=call)
        for observer in self._log.observers:
            observer.before_message(self._log.next_number, started)
        return started

    def after(self, event: TracedEvent, call: CollectiveCall, result: object) -> None:
        """Remember where the message arrives; the buffers are looked at when they are read."""
        self._log.add(event)
        for tensor in [tensor for _, tensor in tensors_in(result)] if call.outs is None else call.outs:
            writer = self._log.wrote(event, tensor, None)
            if tensor.is_floating_point() and tensor.layout == torch.strided:
                self._pending.start(writer, tensor, work_of(result))

    def completes_message(self, operator: Operator, args: Sequence[Any]) -> bool:
        """Whether an operator only completes a message.

        In `wait` of a reduce-scatter, Gloo copies the result from memory of its own by `copy_`.
        """
        if operator.name != "aten::copy_" or not self._pending:
            return False
        into, taken = map(memory_of, args[:2])
        if into is None or taken is None:
            return False
        writers, _ = self._log.lineage.read(into)
        return bool(writers) and writers[0] in self._pending and not self._log.lineage.is_known(taken)

    def _contents(self, call: CollectiveCall) -> MessageContents:
        """Whether the message lies in the model's gradients or parameters."""
        owners = [self._external.owner(tensor) for tensor in call.moved if self._external.holds(tensor)]
        if any(owner is not None and owner.is_gradient for owner in owners):
            return "gradients"
        return "parameters" if any(owners) else ""
