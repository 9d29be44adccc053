"""What else looks at events while they are recorded. A plain traced pass has none of these observers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor
from torch._ops import OperatorBase

from megatron_nanguard.records.trace import TensorFacts
from megatron_nanguard.tracing.marker_fill import count_markers, fill_with_marker
from megatron_nanguard.tracing.places.external_tensors import ExternalTensors
from megatron_nanguard.tracing.recording.event_log import EventObserver, StartedCall
from megatron_nanguard.tracing.recording.events import EventKind, TracedEvent, TracedOutput, TracedRead
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NAN, NonfiniteFlags, Slot, can_be_bad, union
from megatron_nanguard.tracing.recording.operators import NamedTensor
from megatron_nanguard.tracing.recording.tensor_facts import look_closely


class MarkerObserver(EventObserver):
    """Fill memory from an `empty` with the marker, and count what of it is left when the memory is read.

    Sync: at the end of the pass one host read per tensor that no event was seen filling.
    """

    def __init__(self) -> None:
        self._counts: list[tuple[TracedEvent, Tensor]] = []

    def wrote(self, event: TracedEvent, writer: Writer, tensor: Tensor, slot: Slot | None) -> None:
        if event.kind is EventKind.EMPTY:
            fill_with_marker(tensor)
        elif event.kind is EventKind.FILLED:
            num_markers = count_markers(tensor)
            if num_markers is not None:
                self._counts.append((event, num_markers))

    def finish(self) -> None:
        for event, num_markers in self._counts:
            event.never_written = int(num_markers)


class ProbeObserver(EventObserver):
    """Look closely at everything that chosen events read and write.

    Sync: several host reads per tensor of the chosen events.
    """

    def __init__(self, event_numbers: Collection[int], heads: Collection[int], external: ExternalTensors) -> None:
        """Choose the events.

        Args:
            event_numbers: of an earlier pass of the same call, such as its origins.
            heads: numbers of attention heads that a module has on this rank, see `look_closely`.
            external: names the gradients in a bucket.
        """
        self._numbers, self._heads, self._external = event_numbers, heads, external

    def before_operator(self, number: int, call: StartedCall) -> None:
        if number in self._numbers:
            call.event.input_facts += self._inputs(call.read)
            call.event.other_facts += (
                look_closely(tensor, name if index is None else f"{name}[{index}]")
                for name, index, tensor in call.read
                if not can_be_bad(tensor)
            )

    def before_message(self, number: int, call: StartedCall) -> None:
        if number in self._numbers and call.collective is not None:
            call.event.input_facts += self._inputs(call.collective.ins)

    def wrote(self, event: TracedEvent, writer: Writer, tensor: Tensor, slot: Slot | None) -> None:
        # A message is still under way when its call returns.
        if writer.event in self._numbers and event.kind is not EventKind.MESSAGE:
            event.output_facts.append(look_closely(tensor, str(writer.output), self._heads))

    def arrived(self, event: TracedEvent, writer: Writer, tensor: Tensor) -> None:
        if writer.event in self._numbers:
            event.output_facts.append(look_closely(tensor, str(writer.output), self._heads))

    def _inputs(self, named: Iterable[NamedTensor]) -> list[TensorFacts]:
        return [self._input(name, tensor) for name, _, tensor in named if can_be_bad(tensor)]

    def _input(self, name: str, tensor: Tensor) -> TensorFacts:
        """Facts of one input; a whole bucket is named after the first gradient in it that is bad."""
        facts = look_closely(tensor, name, self._heads)
        if facts.positions and tensor.dim() == 1 and tensor.is_contiguous() and self._external.holds(tensor):
            owned = self._external.owner(tensor, facts.positions[0][0])
            if owned is not None and owned.is_gradient:
                return replace(facts, name=owned.name)
        return facts


class NewlyBadObserver(EventObserver):
    """Look closely at each tensor that turns bad, when it does: for a call that is traced once and not run again.

    A tensor is newly bad if it holds a NaN or Inf that none of the tensors it was made from held. Inputs that the
    operator has overwritten are described by their flags alone.

    Sync: two host reads per tensor written; several more per newly bad tensor.
    """

    def __init__(self, flags: NonfiniteFlags, heads: Collection[int]) -> None:
        self._flags, self._heads = flags, heads
        self._bits: dict[Writer, int] = {}
        self._inputs: list[tuple[str, Tensor]] = []

    def before_operator(self, number: int, call: StartedCall) -> None:
        # An operator that resizes a tensor can change what `can_be_bad` says of it: ask before it runs.
        self._inputs = [(name, tensor) for name, _, tensor in call.read if can_be_bad(tensor)]

    def wrote(self, event: TracedEvent, writer: Writer, tensor: Tensor, slot: Slot | None) -> None:
        if slot is None:
            return
        name, bits = str(writer.output), self._flags.now(slot)
        if bits:
            self._bits[writer] = bits
        if bits & ~union(map(self._bits_read, event.reads)) and not _is_meant(event, bits):
            event.output_facts.append(look_closely(tensor, name, self._heads))
        else:
            event.output_facts.append(event.outputs[writer.output].facts(name, bits))

    def after_operator(self, call: StartedCall, written: Collection[Tensor], result: object) -> None:
        inputs, self._inputs = self._inputs, []
        if all(facts.nan_count is None for facts in call.event.output_facts):
            return
        overwritten = {tensor.untyped_storage()._cdata for tensor in written}
        for (name, tensor), read in zip(inputs, call.event.reads, strict=True):
            if tensor.untyped_storage()._cdata in overwritten:
                facts = TracedOutput.of(tensor, None).facts(name, self._bits_read(read))
            else:
                facts = look_closely(tensor, name, self._heads)
            call.event.input_facts.append(facts)

    def _bits_read(self, read: TracedRead) -> int:
        return union(self._bits.get(writer, 0) for writer in read.writers)


class CallObserver(Protocol):
    """Wants the arguments and results of operators, for example to save a call. The tracer does not trace it."""

    def before(self, event: int, func: OperatorBase, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An operator is about to run; its event will have this number."""

    def after(self, out: object) -> None:
        """The same operator has returned `out`."""


class CallForwarder(EventObserver):
    """Show each operator to a `CallObserver`."""

    def __init__(self, observer: CallObserver) -> None:
        self._observer = observer

    def before_operator(self, number: int, call: StartedCall) -> None:
        self._observer.before(number, call.func, call.args, call.kwargs)

    def after_operator(self, call: StartedCall, written: Collection[Tensor], result: object) -> None:
        self._observer.after(result)


def _is_meant(event: TracedEvent, bits: int) -> bool:
    """Whether an infinity was given as a constant or came in as data, such as that of a mask."""
    is_data = event.kind is EventKind.EXTERNAL and not event.is_parameter
    return not bits & NAN and (event.has_bad_constant or is_data)
