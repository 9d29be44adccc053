"""Put an origin into a record: its kind, its bad outputs, and the path from it to the gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

import torch

from megatron_nanguard.records.trace import GRADIENT_OF, OriginKind, TensorFacts, TracedOrigin
from megatron_nanguard.tracing.places.external_tensors import module_of
from megatron_nanguard.tracing.places.step_place import StepPlace
from megatron_nanguard.tracing.recording.events import EventKind, Region, TracedEvent, TracedOutput, TracedRead
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NAN
from megatron_nanguard.tracing.walking.walk import Walk

_LONGEST_PATH: Final = 200
_MOST_INPUTS: Final = 16

# Operators between the gradient of a weight and its accumulation.
_HANDS_ON: Final = frozenset(("add", "add_", "_to_copy", "clone", "mul"))
# Their outputs are proportional to their inputs, so whether they overflow depends on the loss scale alone.
_PROPORTIONAL: Final = frozenset(("_to_copy", "copy_", "mm", "bmm", "addmm", "baddbmm"))

_KINDS: Final = {
    EventKind.OPERATOR: OriginKind.OPERATOR,
    EventKind.MESSAGE: OriginKind.OPERATOR,
    EventKind.EXTERNAL: OriginKind.OUTSIDE,
    EventKind.FILLED: OriginKind.UNSEEN,
    EventKind.LOOKED: OriginKind.UNSEEN,
}


def group_origins(walk: Walk) -> list[list[Writer]]:
    """Group what is one origin: the outputs of one event, repeated calls of a line, a forward and its recompute."""
    groups: dict[object, list[Writer]] = {}
    for point in walk.origins:
        groups.setdefault(_group_key(walk, point), []).append(point)
    return list(groups.values())


def origin_record(walk: Walk, points: list[Writer], output_names: Mapping[Writer, str]) -> TracedOrigin:
    """Describe a group of origins by its first event.

    Args:
        walk: over the pass.
        points: the group, in the order of execution.
        output_names: names of outputs, such as "grad of q".
    """
    first = points[0]
    event = walk.events[first.event]
    if first.output < 0:
        return _unseen_before_sending(walk, first)
    overwritten = _overwritten_input(walk, first)
    if overwritten is not None:
        return _unseen_before_reading(walk, first, *overwritten)
    bad = [point for point in points if point.event == first.event]
    return TracedOrigin(
        event=first.event,
        kind=_kind(walk, first),
        operator=_operator(event),
        place=event.place.record(),
        outputs=tuple(_output_facts(walk, point, output_names) for point in bad),
        inputs=_inputs(walk, event),
        times=len({_call_of(walk.events[point.event], point) for point in points}),
        path=_path(walk, first),
        not_seen=_not_seen(event),
        reader=_reader(walk, first) if event.kind is EventKind.EXTERNAL else None,
    )


def _not_seen(event: TracedEvent) -> tuple[str, ...]:
    """Arguments of the region of an unseen write that could not be looked at."""
    return tuple(event.region.not_seen) if event.is_unseen_write and event.region is not None else ()


def _reader(walk: Walk, point: Writer) -> int | None:
    """Return the event of the first operator on the path."""
    return next(
        (later.event for later in _chain(walk, point) if walk.events[later.event].kind is EventKind.OPERATOR), None
    )


def _group_key(walk: Walk, point: Writer) -> object:
    """Places with the same key are one origin."""
    event = walk.events[point.event]
    where = event.place
    phase = "forward" if where.phase == "recompute" else where.phase
    region = _function_region(event)
    if region is not None and _kind(walk, point) is OriginKind.UNSEEN:
        return region.name, phase, where.module
    values = tuple(map(walk.value, (Writer(point.event, output) for output in range(len(event.outputs)))))
    return _kind(walk, point), event.operator, phase, where.module, where.line, where.parameter, values


def _kind(walk: Walk, point: Writer) -> OriginKind:
    event = walk.events[point.event]
    if event.never_written:
        return OriginKind.NEVER_WRITTEN
    if point.output >= 0 and _is_scaler_at_work(event, event.outputs[point.output], walk.value(point)):
        return OriginKind.SCALER
    return OriginKind.UNSEEN if point.output < 0 else _KINDS[event.kind]


def _is_scaler_at_work(event: TracedEvent, output: TracedOutput, value: int) -> bool:
    """Whether a scaled fp16 gradient overflows: the loss scaler skips such a step by itself."""
    return (
        event.kind is EventKind.OPERATOR
        and output.dtype == torch.float16
        and not value & NAN
        and event.place.phase == "backward"
        and event.operator.partition(".")[0] in _PROPORTIONAL
        and not event.has_bad_constant
    )


def _function_region(event: TracedEvent) -> Region | None:
    """The forward or backward of a Function that an unseen write belongs to."""
    region = event.region
    return region if region is not None and region.is_function and event.is_unseen_write else None


def _call_of(event: TracedEvent, point: Writer) -> object:
    """What counts as one time: a call of a Function, whatever it has written unseen, or an event."""
    return _function_region(event) or point.event


def _operator(event: TracedEvent) -> str:
    region = _function_region(event)
    if region is not None:
        return region.name
    if event.kind is not EventKind.FILLED:
        return event.operator
    where = event.place
    if where.phase == "backward" and where.node is not None:
        return where.node
    return event.operator if where.line is None else where.line.function


def _output_facts(walk: Walk, point: Writer, output_names: Mapping[Writer, str]) -> TensorFacts:
    event = walk.events[point.event]
    output = event.outputs[point.output]
    name = (
        _handed_on_as(walk, point, output_names)
        or output_names.get(point)
        or _weight_gradient(walk, point)
        or str(point.output)
    )
    if point.output < len(event.output_facts):
        return replace(event.output_facts[point.output], name=name)
    return output.facts(name, walk.value(point))


def _handed_on_as(walk: Walk, point: Writer, output_names: Mapping[Writer, str]) -> str:
    """The name under which a backward returns an output: "grad of x".

    An operator that was seen has written what is returned itself. From an unseen write on, what is returned may have
    been made of it, such as a cast.
    """
    region, name = walk.events[point.event].region, ""
    if region is None or region.part != "backward":
        return name
    for later in islice(_chain(walk, point), None if walk.events[point.event].is_unseen_write else 2):
        event = walk.events[later.event]
        if event.region is not region:
            break
        name = output_names.get(later, name)
    return name


def _weight_gradient(walk: Walk, point: Writer) -> str:
    """Return "wgrad of NAME" if the output is added to the gradient of a parameter, else an empty string."""
    region, following = walk.events[point.event].region, walk.towards[point]
    while following is not None:
        event = walk.events[following.event]
        if event.place.phase == "accumulate" and event.place.parameter:
            return f"wgrad of {event.place.parameter}"
        # What another region has written unseen is made of the output; it is not the output.
        hands_on = event.kind is EventKind.LOOKED and event.region is region
        if not hands_on and event.operator.partition(".")[0] not in _HANDS_ON:
            return ""
        following = walk.towards[following]
    return ""


def _inputs(walk: Walk, event: TracedEvent) -> tuple[TensorFacts, ...]:
    if event.is_unseen_write and event.region is not None:
        region = event.region
        distinct = {read.writers: read for read in reversed(region.reads) if not _is_workspace(walk, read, region)}
        return tuple(_went_in(walk, read) for read in reversed(distinct.values()))[:_MOST_INPUTS]
    seen = event.input_facts or [read.seen.facts(read.name, walk.read_value(read)) for read in event.reads]
    return (*seen, *event.other_facts)[:_MOST_INPUTS]


def _is_workspace(walk: Walk, read: TracedRead, region: Region) -> bool:
    return bool(read.writers) and all(walk.is_workspace(writer, region) for writer in read.writers)


def _went_in(walk: Walk, read: TracedRead) -> TensorFacts:
    """Facts of a tensor that went into a region, by the flags of its writers."""
    value = walk.read_value(read)
    return replace(read.seen.facts(read.name, value), absmax=None if value else walk.largest(read))


def _overwritten_input(walk: Walk, point: Writer) -> tuple[TracedRead, TensorFacts] | None:
    """Find an input that was bad when it was read, though all its known writers wrote finite values."""
    event = walk.events[point.event]
    for read, facts in zip(event.reads, event.input_facts, strict=False):
        if facts.pattern != "finite" and read.writers and not any(map(walk.value, read.writers)):
            return read, facts
    return None


def _unseen_before_reading(walk: Walk, reader: Writer, read: TracedRead, facts: TensorFacts) -> TracedOrigin:
    """Describe an unseen write by the last writer that is known; in a bucket by the gradient that is bad."""
    writer = read.writers[0].event
    wrote = walk.events[writer]
    operator, place = _operator(wrote), wrote.place.record()
    if facts.name.startswith(GRADIENT_OF):
        parameter = facts.name.removeprefix(GRADIENT_OF)
        operator = f"wgrad of {parameter}"
        place = replace(walk.events[reader.event].place.record(), phase="accumulate", module=module_of(parameter))
    return TracedOrigin(
        event=writer,
        kind=OriginKind.UNSEEN,
        operator=operator,
        place=place,
        outputs=(replace(facts, name=str(read.writers[0].output)),),
        path=_path(walk, reader),
    )


def _unseen_before_sending(walk: Walk, point: Writer) -> TracedOrigin:
    """Describe an unseen write into a tensor that a message then sent."""
    event = walk.events[point.event]
    read = event.reads[~point.output]
    return TracedOrigin(
        event=point.event,
        kind=OriginKind.UNSEEN,
        operator=f"what {event.operator} sent",
        place=event.place.record(),
        outputs=(read.seen.facts(read.name, walk.value(point)),),
        path=_path(walk, point),
    )


def _path(walk: Walk, point: Writer) -> tuple[str, ...]:
    first, *later = [walk.events[on_path.event] for on_path in _chain(walk, point)]
    events = [first, *(event for event in later if event.kind is not EventKind.LOOKED)]
    return tuple(_unrepeated(map(_words, events)))[:_LONGEST_PATH]


def _chain(walk: Walk, point: Writer) -> Iterator[Writer]:
    """Yield the points from an origin to the gradient, loss or message at the end."""
    following: Writer | None = point
    while following is not None:
        yield following
        following = walk.towards[following]


def _words(event: TracedEvent) -> str:
    where: StepPlace = event.place
    module = where.parameter or where.module
    return f"{_operator(event)} in {module}" if module else _operator(event)


def _unrepeated(words: Iterable[str]) -> Iterator[str]:
    last = None
    for word in words:
        if word != last:
            yield word
        last = word
