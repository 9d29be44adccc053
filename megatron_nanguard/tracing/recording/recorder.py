"""Turns operators into events: who wrote what each of them reads, and whether what it wrote is finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from megatron_nanguard.records.trace import MessageContents, Phase, TensorFacts
from megatron_nanguard.tensor_names import tensors_in
from megatron_nanguard.tracing.catching import Catcher
from megatron_nanguard.tracing.marker_fill import count_markers, fill_with_marker
from megatron_nanguard.tracing.places.current_place import CurrentPlace
from megatron_nanguard.tracing.places.external_tensors import ExternalTensors, ModelMemory, describe
from megatron_nanguard.tracing.places.step_place import StepPlace
from megatron_nanguard.tracing.recording.events import EventKind, Sent, TracedEvent, TracedOutput, TracedRead
from megatron_nanguard.tracing.recording.lineage import Lineage, Range, Writer
from megatron_nanguard.tracing.recording.messages import CollectiveCall, Messages, Named, can_hold_values, phase_of
from megatron_nanguard.tracing.recording.nonfinite_flags import NonfiniteFlags, can_be_bad
from megatron_nanguard.tracing.recording.observers import AtOnce
from megatron_nanguard.tracing.recording.operators import CallKind, Operator, has_bad_constant
from megatron_nanguard.tracing.recording.tensor_facts import look_closely, number_facts


class StartedCall(NamedTuple):
    """An operator that was looked at before it runs."""

    operator: Operator
    reads: list[TracedRead]
    call: CollectiveCall | None = None
    sent: Sent | None = None
    input_facts: Sequence[TensorFacts] = ()
    other_facts: Sequence[TensorFacts] = ()
    able: Sequence[tuple[str, Tensor]] = ()
    carries: MessageContents = ""


class EventRecorder:
    """The events of one pass.

    Runs where no operator of its own is dispatched to the tracer again: inside `__torch_dispatch__`, or with the
    modes off.
    """

    def __init__(
        self,
        whereabouts: CurrentPlace,
        outside: ExternalTensors,
        fills_with_marker: bool,
        probe: frozenset[int],
        heads: frozenset[int],
        catcher: Catcher | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        self.events: list[TracedEvent] = []
        self.flags = NonfiniteFlags()
        self.messages = Messages()
        self._lineage = Lineage()
        self._where, self._outside = whereabouts, outside
        self._fills_with_marker, self._probe, self._heads = fills_with_marker, probe, heads
        self._operators: dict[Any, Operator] = {}
        self._catcher = catcher
        self._at_once = AtOnce(self.flags, heads) if at_once else None

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StartedCall | None:
        """Look at what an operator is about to read; None when it leaves no event."""
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = Operator.of(func)
        self._where.about_to_run(operator)
        if operator.kind is CallKind.MESSAGE:
            return self._before_message(operator, args, kwargs)
        if not self._where.is_traced:
            self._note_arrivals(operator, args, kwargs)
            return None
        if operator.kind is CallKind.EMPTY:
            return StartedCall(operator, [])
        if operator.kind is CallKind.VIEW or self._completes_a_message(operator, args):
            return None
        named: list[Named] = []
        numbers: list[Named] = []
        for one in operator.reads(args, kwargs):
            (numbers if self._is_number(one[2]) else named).append(one)
        reads = self._reads(named)
        others = [*_bad_numbers(operator, args, kwargs, numbers), *self._unable(named)]
        if self._catcher is not None:
            self._catcher.before(len(self.events), func, args, kwargs)
        able = [] if self._at_once is None else [(name, tensor) for name, _, tensor in named if can_be_bad(tensor)]
        return StartedCall(operator, reads, able=able, input_facts=self._probed(named), other_facts=others)

    def after(self, started: StartedCall, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Look at what the operator wrote."""
        if started.call is not None:
            self._after_message(started, started.call, result)
            return
        operator = started.operator
        if operator.kind is CallKind.EMPTY:
            self._handed_out(operator, result)
            return
        event = self._event(operator.label, EventKind.OPERATOR, self._where.place(), started.reads)
        event.is_parallel = operator.parallel
        event.input_facts.extend(started.input_facts)
        event.other_facts.extend(started.other_facts)
        written = {id(tensor): tensor for _, tensor in tensors_in(result)}
        written.update((id(tensor), tensor) for tensor in operator.writes(args, kwargs))
        for tensor in written.values():
            self._wrote(event, tensor, self.flags.put(tensor))
        if self._at_once is not None:
            event.input_facts.extend(self._at_once.inputs(event, started.able, written.values()))
        if self._catcher is not None:
            self._catcher.after(result)

    def look(self, name: str, tensor: Tensor, place: StepPlace, is_untraced: bool) -> None:
        """Look at a gradient after a backward step: a fused kernel adds to it unseen."""
        read = self._read(name, None, tensor)
        event = self._event(name, EventKind.LOOKED, place, [read])
        event.is_untraced = is_untraced
        self._wrote(event, tensor, self.flags.put(tensor))

    def is_under_way(self, tensor: Tensor) -> bool:
        """Whether a message that nobody waited for may be writing into the tensor."""
        return any(writer in self.messages.pending for writer in self._lineage.read(tensor)[0])

    def writers(self, tensor: Tensor) -> tuple[Writer, ...]:
        """Who wrote what a tensor holds; what came from outside becomes an event."""
        return self._read("", None, tensor).writers if can_be_bad(tensor) else ()

    def left_region(self, tensor: Tensor) -> list[Writer]:
        """Look at what the node that has just run hands on: its kernel may have written there unseen.

        Returns:
            Who wrote it in there.
        """
        if not can_be_bad(tensor):
            return []
        here = self._where.place()
        # Memory from a kernel that no operator was seen handing out is not from before the trace.
        reads = [self._read("", None, tensor)] if self._lineage.is_known(tensor) else []
        inside = [w for read in reads for w in read.writers if self.events[w.event].place.node == here.node]
        event = self._event(str(here.node), EventKind.LOOKED, here, reads)
        return [*inside, self._wrote(event, tensor, self.flags.put(tensor))]

    def finish(self) -> None:
        """Look at the messages that nobody read, then fetch all flags.

        Sync: one host read per dtype and device; under marker fill one more per tensor that nobody was seen filling.
        """
        self._arrive(self.messages.all_arrived(), at_the_end=True)
        self.flags.read()
        for event in self.events:
            if event.marked is not None:
                event.never_written = int(event.marked)

    # -- reading

    def _reads(self, named: Iterable[tuple[str, int | None, Tensor]]) -> list[TracedRead]:
        return [self._read(name, index, tensor) for name, index, tensor in named if can_be_bad(tensor)]

    def _read(self, name: str, column: int | None, tensor: Tensor) -> TracedRead:
        writers, unknown = self._lineage.read(tensor)
        self._arrive(self.messages.arrived(writers))
        if writers and self.events[writers[-1].event].kind is EventKind.EMPTY:
            writers = [*writers[:-1], self._filled(tensor, writers)]
        if unknown and (not writers or tensor.is_contiguous()):
            writers.append(self._from_outside(tensor, unknown, is_part=bool(writers)))
        is_part = any(self._numel(writer) > tensor.numel() for writer in writers)
        return TracedRead(
            name, column, tuple(writers), TracedOutput.of(tensor, self.flags.put(tensor) if is_part else None)
        )

    def _is_number(self, tensor: Tensor) -> bool:
        """Whether torch has made a plain number into a tensor, as the one in `x[0] = nan`: part of the operator."""
        return (
            tensor.dim() == 0
            and tensor.device.type == "cpu"
            and can_be_bad(tensor)
            and not tensor.is_complex()
            and not self._lineage.is_known(tensor)
            and self._outside.owner(tensor) is None
        )

    def _filled(self, tensor: Tensor, writers: Sequence[Writer]) -> Writer:
        """Memory that was handed out is read: something unseen has filled it, or nobody."""
        handed_out = self.events[writers[-1].event]
        seen = TracedOutput.of(tensor, None)
        reads = [TracedRead("written by an operator", None, tuple(writers[:-1]), seen)] if len(writers) > 1 else []
        event = self._event("unseen write", EventKind.FILLED, handed_out.place, reads)
        event.first_used = self._where.place()
        if self._fills_with_marker:
            event.marked = count_markers(tensor)
        return self._wrote(event, tensor, self.flags.put(tensor))

    def _from_outside(self, tensor: Tensor, unknown: Sequence[Range], is_part: bool) -> Writer:
        """A tensor from before the trace is read: parameter, data, or what lies beside the part that is known.

        The unknown part alone is judged: padding of a bucket is nobody's fault.
        """
        part = _largest(tensor, unknown) if is_part else tensor
        owned = self._outside.owner(part)
        place = StepPlace("load", self._where.step, owned.module if owned else "")
        event = self._event(owned.name if owned else describe(part), EventKind.OUTSIDE, place, [])
        event.is_parameter = owned is not None and owned.is_parameter
        event.is_untraced = self._where.has_skipped and self._is_of_a_skipped_step(owned)
        return self._wrote(event, part, self.flags.put(part))

    def _is_of_a_skipped_step(self, owned: ModelMemory | None) -> bool:
        """Gradients add up over all steps; between the steps the schedule hands on what they have made."""
        return self._where.step.microbatch is None if owned is None else owned.is_gradient

    def _note_arrivals(self, operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A step that is not traced reads: the buffers of messages must not be held beyond that."""
        if self.messages.pending:
            for _, _, tensor in operator.reads(args, kwargs):
                self._arrive(self.messages.arrived(self._lineage.read(tensor)[0]))

    def _completes_a_message(self, operator: Operator, args: Sequence[Any]) -> bool:
        """Gloo writes what a reduce-scatter brings by `copy_` inside `wait`, from memory nobody knows."""
        if operator.name != "aten::copy_" or not self.messages.pending:
            return False
        writers, _ = self._lineage.read(args[0])
        return bool(writers) and writers[0] in self.messages.pending and not self._lineage.is_known(args[1])

    # -- writing

    def _event(self, name: str, kind: EventKind, place: StepPlace, reads: list[TracedRead]) -> TracedEvent:
        event = TracedEvent(name, kind, place, reads, [])
        self.events.append(event)
        return event

    def _wrote(self, event: TracedEvent, tensor: Tensor, slot: Any) -> Writer:
        """The newest event wrote the tensor."""
        number = len(self.events) - 1
        assert self.events[number] is event
        writer = Writer(number, len(event.outputs))
        event.outputs.append(TracedOutput.of(tensor, slot))
        self._lineage.write(tensor, writer)
        if number in self._probe and event.kind is not EventKind.MESSAGE:
            event.output_facts.append(look_closely(tensor, str(writer.output), self._heads))
        if self._at_once is not None and slot is not None:
            event.output_facts.append(self._at_once.output(event, writer, tensor, slot))
        return writer

    def _handed_out(self, operator: Operator, tensor: Tensor) -> None:
        event = self._event(operator.label, EventKind.EMPTY, self._where.place(), [])
        if self._fills_with_marker:
            fill_with_marker(tensor)
        self._wrote(event, tensor, None)

    def _numel(self, writer: Writer) -> int:
        return math.prod(self.events[writer.event].outputs[writer.output].shape)

    # -- messages

    def _before_message(self, operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StartedCall | None:
        call = self.messages.call(operator, args, kwargs)
        if call is None or not (self._where.is_traced or self._carries_model_memory(call)):
            return None
        # The flags come before the call: an all-reduce in place overwrites what was sent.
        reads = self._reads(call.ins)
        slots = [self.flags.put(tensor) for _, _, tensor in call.ins if can_be_bad(tensor)]
        sent = Sent(call.channel, call.number, slots)
        return StartedCall(
            operator, reads, call=call, sent=sent, input_facts=self._probed(call.ins), carries=self._cargo(call)
        )

    def _after_message(self, started: StartedCall, call: CollectiveCall, result: Any) -> None:
        between: Phase = phase_of(started.operator)
        event = self._event(started.operator.label, EventKind.MESSAGE, self._where.place(between), started.reads)
        event.sent = started.sent
        event.input_facts.extend(started.input_facts)
        event.carries = started.carries
        event.is_untraced = not self._where.is_traced
        outs = [tensor for _, tensor in tensors_in(result)] if call.outs is None else call.outs
        for tensor in outs:
            writer = self._wrote(event, tensor, None)
            if can_hold_values(tensor):
                self.messages.started(writer, tensor)

    def _carries_model_memory(self, call: CollectiveCall) -> bool:
        """Gradients and weights travel while steps run that are not traced."""
        return any(map(self._outside.holds, [*(call.outs or ()), *(tensor for _, _, tensor in call.ins)]))

    def _cargo(self, call: CollectiveCall) -> MessageContents:
        """Whose memory a message is in."""
        moved = (*(call.outs or ()), *(tensor for _, _, tensor in call.ins))
        owners = [self._outside.owner(tensor) for tensor in moved if self._outside.holds(tensor)]
        if any(owner is not None and owner.is_gradient for owner in owners):
            return "gradients"
        return "parameters" if any(owners) else ""

    def _arrive(self, arrived: Iterable[tuple[Writer, Tensor]], at_the_end: bool = False) -> None:
        for writer, buffer in arrived:
            event = self.events[writer.event]
            event.outputs[writer.output] = TracedOutput.of(buffer, self.flags.put(buffer))
            if event.first_used is None and not at_the_end:
                event.first_used = self._where.place()
            if writer.event in self._probe:
                event.output_facts.append(look_closely(buffer, str(writer.output), self._heads))

    def _probed(self, named: Iterable[tuple[str, int | None, Tensor]]) -> list[TensorFacts]:
        """A close look at what the next event reads, if it is among those that matter."""
        if len(self.events) not in self._probe:
            return []
        return [self._input_facts(tensor, name) for name, _, tensor in named if can_be_bad(tensor)]

    def _unable(self, named: Iterable[Named]) -> list[TensorFacts]:
        """What else the next event reads, if it is among those that matter: tensors that cannot hold a NaN."""
        if len(self.events) not in self._probe:
            return []
        return [
            look_closely(tensor, name if index is None else f"{name}[{index}]")
            for name, index, tensor in named
            if not can_be_bad(tensor)
        ]

    def _input_facts(self, tensor: Tensor, name: str) -> TensorFacts:
        """Look closely; in a whole bucket the gradient that is bad gives the name."""
        facts = look_closely(tensor, name, self._heads)
        if facts.positions and tensor.dim() == 1 and tensor.is_contiguous() and self._outside.holds(tensor):
            owned = self._outside.owner(tensor, facts.positions[0][0])
            if owned is not None and owned.is_gradient:
                return replace(facts, name=owned.name)
        return facts


def _bad_numbers(
    operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any], made_tensors: Iterable[Named]
) -> list[TensorFacts]:
    """The plain numbers that are NaN or Inf, with those that torch has made into tensors."""
    numbers = [(name, float(tensor)) for name, _, tensor in made_tensors]
    if has_bad_constant([*args, *kwargs.values()]):
        numbers += operator.bad_numbers(args, kwargs)
    return [number_facts(name, number) for name, number in numbers if not math.isfinite(number)]


def _largest(tensor: Tensor, ranges: Sequence[Range]) -> Tensor:
    """The largest of these byte ranges of a contiguous tensor's storage, as a flat view."""
    size, first = tensor.element_size(), tensor.storage_offset()
    start, end = max(ranges, key=lambda piece: piece[1] - piece[0])
    return tensor.detach().view(-1)[start // size - first : end // size - first]
