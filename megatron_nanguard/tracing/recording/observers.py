"""A close look at what turns bad in the moment it does: for a call that is traced once, and may not be made again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import reduce
from operator import or_
from typing import Any

from torch import Tensor

from megatron_nanguard.records.trace import TensorFacts
from megatron_nanguard.tensor_names import dtype_name
from megatron_nanguard.tracing.recording.events import EventKind, TracedEvent, TracedRead
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NAN, NonfiniteFlags, pattern
from megatron_nanguard.tracing.recording.tensor_facts import look_closely


class AtOnce:
    """Knows of every bad output so far; looks closely at one that is bad in a way that nothing it came from was.

    What an operator has overwritten among its inputs cannot be looked at any more; of that its pattern is told.
    """

    def __init__(self, flags: NonfiniteFlags, heads: Collection[int]) -> None:
        self._flags, self._heads = flags, heads
        self._bits: dict[Writer, int] = {}

    def output(self, event: TracedEvent, writer: Writer, tensor: Tensor, slot: Any) -> TensorFacts:
        """Facts of what an event has just written.

        Sync: two host reads; several more for the few tensors that turn bad.
        """
        bits = self._flags.now(slot)
        if bits:
            self._bits[writer] = bits
        if bits & ~_union(map(self._read, event.reads)) and not _is_meant(event, bits):
            return look_closely(tensor, str(writer.output), self._heads)
        return _plain(str(writer.output), tensor, bits)

    def inputs(
        self, event: TracedEvent, tensors: Iterable[tuple[str, Tensor]], written: Iterable[Tensor]
    ) -> list[TensorFacts]:
        """Facts of what it has read, where one of its outputs was looked at closely.

        Args:
            tensors: named, in the order of its reads.
            written: by the event.
        """
        if all(facts.nan_count is None for facts in event.output_facts):
            return []
        overwritten = {tensor.untyped_storage()._cdata for tensor in written}
        return [
            _plain(name, tensor, self._read(read))
            if tensor.untyped_storage()._cdata in overwritten
            else look_closely(tensor, name, self._heads)
            for (name, tensor), read in zip(tensors, event.reads, strict=True)
        ]

    def _read(self, read: TracedRead) -> int:
        return _union(self._bits.get(writer, 0) for writer in read.writers)


def _is_meant(event: TracedEvent, bits: int) -> bool:
    """An infinity given as a constant, or brought in as data, such as that of a mask."""
    from_outside = event.kind is EventKind.OUTSIDE and not event.is_parameter
    return not bits & NAN and (event.has_bad_constant or from_outside)


def _plain(name: str, tensor: Tensor, bits: int) -> TensorFacts:
    return TensorFacts(name, tuple(tensor.shape), dtype_name(tensor.dtype), pattern(bits))


def _union(values: Iterable[int]) -> int:
    return reduce(or_, values, 0)
