"""A merged incident and its traces become one with origin, causes and advice."""

from __future__ import annotations

from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.records.incident import Incident, Infected
from megatron_nanguard.records.json_form import from_json, to_json
from megatron_nanguard.records.postmortem import RankSets
from tests.unit.diagnosis.factories import group, message, origin, sink, to_arrival, to_origin, trace, traced_origin
from tests.unit.factories import incident

TWO = incident(ranks=RankSets((4, 5), (), ()), infected=(Infected(4, "by the layout", "", ()),))


def test_the_joined_origin_is_judged_and_read_back() -> None:
    bad = message(20, group(4, 5), sent="nan", causes=to_origin())
    traces = [
        trace(5, origins=(traced_origin(),), arrivals=(bad,), departures=(bad,), sinks=(sink(to_arrival(0)),)),
        trace(4, arrivals=(message(9, group(4, 5)),), sinks=(sink(to_arrival(0)),)),
    ]

    concluded = conclude(TWO, traces)

    assert concluded.origin == (origin(),)
    assert [(one.rank, one.by, one.from_ranks) for one in concluded.infected] == [(4, "allreduce_ no. 0", (5,))]
    assert [cause.cause for cause in concluded.causes] == ["numerics"]
    assert concluded.advice == ("log_outside_domain",)
    assert from_json(Incident, to_json(concluded)) == concluded


def test_a_rank_of_the_exchange_without_a_trace_is_mentioned() -> None:
    concluded = conclude(TWO, [trace(5, origins=(traced_origin(),), sinks=(sink(to_origin()),))])

    assert concluded.notes == ("no trace of rank 4: an origin there would not show",)


def test_without_any_trace_the_layout_has_the_word_and_nothing_is_decided() -> None:
    concluded = conclude(TWO, ())

    assert (concluded.origin, concluded.infected) == ((), TWO.infected)
    assert [cause.cause for cause in concluded.causes] == ["undecided"]
