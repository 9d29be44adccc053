"""A merged incident and its traces become one with origin, causes and advice."""

from __future__ import annotations

from megatron_nanguard.diagnosis.concluding import conclude, gather
from megatron_nanguard.diagnosis.evidence import EarlierIncident, ScalerFacts
from megatron_nanguard.records.incident import Cause, Incident, Infected
from megatron_nanguard.records.json_form import from_json, to_json
from megatron_nanguard.records.postmortem import RankSets, ScalerState
from megatron_nanguard.records.replay import ReplaySummary
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


def test_the_scaler_and_its_replays_reach_the_rules() -> None:
    tried = ReplaySummary(done=True, previous_batch="bad", lower_scale="finite")
    found = gather(incident(loss_scale=1024.0, scaler=ScalerState(False, True, 2), replay=tried))

    assert found.scaler == ScalerFacts(1024.0, just_raised=True, skips_in_a_row=2, lower_scale="finite")
    assert found.previous_batch == "bad"


def test_a_constant_scale_is_no_scaler() -> None:
    assert gather(incident(loss_scale=4.0)).scaler is None


def test_earlier_incidents_count_unless_they_explain_themselves() -> None:
    sets = RankSets((4, 5), (), ())
    earlier = [
        incident(step=3, ranks=sets, causes=(cause("undecided"),)),
        incident(step=5, ranks=sets, causes=(cause("loss_or_mask"),)),
        incident(step=8, ranks=sets, origin=(origin(rank=7), origin(rank=2)), causes=(cause("operator"),)),
    ]

    assert gather(incident(), earlier).earlier == (
        EarlierIncident(3, (4, 5)),
        EarlierIncident(8, (2, 7), "decoder.layers.3.mlp", "log"),
    )


def test_options_of_the_host_reach_the_next_experiment() -> None:
    assert gather(incident(), (), ["overlap_grad_reduce"]).host_options == {"overlap_grad_reduce"}


def cause(code: str) -> Cause:
    return Cause(code, 0.9, ("fact",), (), (), "")
