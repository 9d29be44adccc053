"""Make the origins of an incident from what one rank traced, or from what several ranks show together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from megatron_nanguard.diagnosis.joining.walk_back import Unseen
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.trace import Message, OriginKind, RankTrace, TensorFacts, TracedOrigin, pattern_of

UNSEEN_WRITER: Final = phrase("unseen writer")
"""Takes the place of the operator where something that the dispatcher does not see has written."""

COLLECTIVE: Final = phrase("collective number {number} of {between} in this step (from 0)")
MESSAGE: Final = phrase("message number {number} of {between} in this step (from 0)")
LISTED_MEMBERS: Final = 16

REDUCING = ("allreduce", "all_reduce", "reduce")


def is_reducing(operator: str) -> bool:
    """Whether a communication adds up what its members send, so that it can overflow by itself."""
    return operator.lstrip("_").startswith(REDUCING)


def traced(trace: RankTrace, found: TracedOrigin) -> Origin:
    """An origin that one rank's tracer found."""
    bad = next((output for output in found.outputs if output.pattern != "finite"), None)
    place = found.place
    return Origin(
        rank=trace.rank,
        coords=trace.coords,
        microbatch=place.microbatch,
        phase=place.phase,
        module=place.module,
        operator=found.operator,
        output=bad.name if bad else "",
        pattern=bad.pattern if bad else "nan",
        # A node of the backward made in C++ has no line of its own: then that of its forward.
        source_line=place.source_line or place.forward_line,
        positions=bad.positions if bad else (),
        kind=found.kind,
        facts=bad,
        inputs=found.inputs,
        forward_operator=place.forward_operator,
        function_line=place.function_line,
        times=found.times,
        path=found.path,
        not_seen=found.not_seen,
    )


def spoiled(arrived: Mapping[int, Message], traces: Mapping[int, RankTrace], between: str) -> Origin:
    """A communication whose result was bad though every sender was finite: one origin for all its members.

    Args:
        arrived: on the members that got the result.
        traces: by rank.
        between: which ranks it went, in words.
    """
    rank = min(arrived)
    message, trace = arrived[rank], traces[rank]
    form = MESSAGE if trace.channels[message.channel].kind == "p2p" else COLLECTIVE
    use = message.first_used
    patterns = {message.arrived for message in arrived.values()}
    return Origin(
        rank=rank,
        coords=trace.coords,
        microbatch=use.microbatch if use else trace.microbatch,
        phase=use.phase if use else ("reduce" if is_reducing(message.operator) else "gather"),
        module=use.module if use else "",
        operator=message.operator,
        output=form.format(number=message.number, between=between),
        pattern=pattern_of(patterns & {"nan", "nan+inf"}, patterns & {"inf", "nan+inf"}),
        source_line=message.line or (use.source_line if use else None),
        positions=(),
        kind=OriginKind.COMMUNICATION,
        facts=message.came_out,
        inputs=tuple(_put_in(arrived)),
        ranks=tuple(sorted(arrived)),
    )


def _put_in(arrived: Mapping[int, Message]) -> Iterator[TensorFacts]:
    """What each member sent, as far as it is known."""
    for rank, message in islice(sorted(arrived.items()), LISTED_MEMBERS):
        if message.put_in is not None:
            name = phrase("{name} of rank {rank}", name=message.put_in.name, rank=rank)
            yield replace(message.put_in, name=name)


def unseen(trace: RankTrace, found: Unseen) -> Origin:
    """A bad gradient or message whose writer the tracer did not see."""
    is_gradient = found.event is None and not found.what.startswith("loss")
    return Origin(
        rank=trace.rank,
        coords=trace.coords,
        microbatch=trace.microbatch,
        phase="accumulate" if is_gradient else "backward",
        module=found.what.rpartition(".")[0] if is_gradient else "",
        operator=UNSEEN_WRITER,
        output=phrase("gradient of {name}", name=found.what) if is_gradient else found.what,
        pattern=found.pattern,
        source_line=None,
        positions=(),
        kind=OriginKind.UNSEEN,
        facts=TensorFacts(found.what, (), "", found.pattern),
    )
