"""Traces and cases for the diagnosis: a factory makes a complete one, and takes what a test wants different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.incident import Incident, Origin
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import ReplaySummary
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.records.trace import (
    CauseLink,
    Message,
    OriginKind,
    RankTrace,
    Sink,
    TensorFacts,
    TracedOrigin,
    TracedPlace,
)
from tests.unit.factories import incident

# rank = tp + 2 * (dp + 2 * pp)
LAYOUT_A = {
    0: "tp0pp0dp0",
    1: "tp1pp0dp0",
    2: "tp0pp0dp1",
    3: "tp1pp0dp1",
    4: "tp0pp1dp0",
    5: "tp1pp1dp0",
    6: "tp0pp1dp1",
    7: "tp1pp1dp1",
}
LINE = "model.py:7 in f"
BACKWARD = TracedPlace("backward", 2, 0, "decoder.layers.3.mlp", "LogBackward", None, "log", LINE)
NORM = TracedPlace("backward", 2, 0, "decoder.layers.3.pre_mlp_layernorm")
FINITE = TensorFacts("self", (4, 8), "bfloat16", "finite")
NAN = TensorFacts("0", (4, 8), "bfloat16", "nan", 3, 0, 1.5, ((0, 1), (2, 5)))


def to_origin(index: int = 0) -> tuple[CauseLink, ...]:
    return (CauseLink("origin", index),)


def to_arrival(*indices: int) -> tuple[CauseLink, ...]:
    return tuple(CauseLink("arrival", index) for index in indices)


def traced_origin(event: int = 10, **changes: Any) -> TracedOrigin:
    """A `log` in the backward of layer 3 that made NaN of finite values."""
    return replace(TracedOrigin(event, OriginKind.OPERATOR, "log", BACKWARD, (NAN,), (FINITE,)), **changes)


def group(*ranks: int) -> Channel:
    return Channel.group(ranks)


def p2p(source: int, destination: int) -> Channel:
    return Channel.p2p(source, destination)


class Spoken(NamedTuple):
    """A message with its channel, before a trace has numbered the channels."""

    channel: Channel
    message: Message

    def but(self, **changes: Any) -> Spoken:
        return self._replace(message=replace(self.message, **changes))


def message(event: int, channel: Channel, number: int = 0, **changes: Any) -> Spoken:
    """A finite contribution to an all-reduce that came back NaN."""
    return Spoken(channel, replace(Message(event, "allreduce_", 0, number, "finite", "nan"), **changes))


def trace(rank: int, arrivals: Sequence[Spoken] = (), departures: Sequence[Spoken] = (), **changes: Any) -> RankTrace:
    """A rank of layout A that saw nothing bad."""
    channels = tuple(dict.fromkeys(spoken.channel for spoken in (*arrivals, *departures)))
    numbered = {
        name: tuple(replace(spoken.message, channel=channels.index(spoken.channel)) for spoken in messages)
        for name, messages in (("arrivals", arrivals), ("departures", departures))
    }
    known = {"coords": LAYOUT_A.get(rank, ""), "microbatch": 2, "num_events": 500, "channels": channels}
    return RankTrace(rank=rank, **{**known, **numbered, **changes})


def sink(causes: tuple[CauseLink, ...], name: str = "decoder.layers.3.mlp.linear_fc1.weight") -> Sink:
    return Sink((name,), "nan", causes)


def origin(**changes: Any) -> Origin:
    """The origin of `traced_origin` on rank 5."""
    record = Origin(
        rank=5,
        coords="tp1pp1dp0",
        microbatch=2,
        phase="backward",
        module="decoder.layers.3.mlp",
        operator="log",
        output="0",
        pattern="nan",
        source_line=LINE,
        positions=((0, 1), (2, 5)),
        kind=OriginKind.OPERATOR,
        facts=NAN,
        inputs=(FINITE,),
        forward_operator="log",
    )
    return replace(record, **changes)


def case(**changes: Any) -> Case:
    """An incident of which nothing is known; takes fields of the case, its incident and its replay."""
    return changed(Case(incident()), **changes)


def changed(known: Case, **changes: Any) -> Case:
    """The same case with some fields of it, its incident and its replay changed."""
    of_case = {name: changes.pop(name) for name in ("earlier", "host_options") if name in changes}
    of_replay = {one.name: changes.pop(one.name) for one in fields(ReplaySummary) if one.name in changes}
    replay = replace(known.incident.replay, **of_replay)
    return replace(known, incident=replace(known.incident, replay=replay, **changes), **of_case)


def earlier(step: int, *ranks: int, **changes: Any) -> Incident:
    """An incident of the same run in which some ranks were bad before the reduction."""
    return incident(step=step, ranks=RankSets(ranks, (), ()), **changes)


def arbitration(**changes: Any) -> Arbitration:
    """The call of `origin`, saved and not run again."""
    return replace(Arbitration(rank=5, operator="aten.log.default", module="decoder.layers.3.mlp"), **changes)
