"""A merged incident and its traces become one with origin, causes and advice."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.diagnosis.concluding import conclude, gather
from megatron_nanguard.diagnosis.evidence import EarlierIncident, ScalerFacts
from megatron_nanguard.records.device import RankDevice
from megatron_nanguard.records.incident import Incident, Infected, MicrobatchLosses, RankedCause
from megatron_nanguard.records.json.conversion import from_json, to_json
from megatron_nanguard.records.postmortem import RankSets, ScalerState
from megatron_nanguard.records.replay import ReplayPass, ReplaySummary
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
    assert [(one.rank, one.by, one.from_ranks) for one in concluded.infected] == [(4, "TP all-reduce", (5,))]
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


def test_another_attempt_is_told_with_its_devices_and_always_where_it_met_the_same_step() -> None:
    explained, devices = (cause("numerics"),), (RankDevice(4, "node1", "cuda:4"), RankDevice(7, "node1", "cuda:7"))
    earlier = [
        incident(run_id="first", step=3, ranks=RankSets((4,), (), ()), causes=explained, accused_devices=devices),
        incident(run_id="first", step=2, ranks=RankSets((4,), (), ()), causes=explained, accused_devices=devices),
        incident(run_id="first", step=2, origin=(origin(rank=7),), accused_devices=devices),
    ]

    gathered = gather(incident(step=3, num_hosts=2, accused_devices=devices[:1]), earlier)

    assert (gathered.devices, gathered.num_hosts) == (devices[:1], 2)
    assert gathered.earlier == (
        EarlierIncident(3, (4,), attempt="first", devices=devices[:1]),
        EarlierIncident(2, (7,), "decoder.layers.3.mlp", "log", attempt="first", devices=devices[1:]),
    )


def test_options_of_the_host_reach_the_next_experiment() -> None:
    options = {"transformer_impl": "local"}
    assert gather(incident(), (), options).host_options == options
    assert gather(incident()).host_options == {}


def test_a_bad_loss_tells_by_when_it_had_begun_where_no_operator_is_known() -> None:
    losses = (MicrobatchLosses(0, 2, 1.0, 1.5, ()), MicrobatchLosses(1, 2, 1.0, 1.0, (1,)))
    gone = ReplaySummary(done=True, passes=(ReplayPass("plain", "no"),))
    known = incident(summary="Step 3: bad.", losses=losses, replay=gone)

    assert conclude(known, ()).summary == (
        "Step 3: bad. The loss of micro-batch 1 was NaN or Inf on rank 1, so it began by the end of that forward; "
        "the operator is not known: the replay was clean."
    )
    assert conclude(replace(known, losses=losses[:1]), ()).summary == "Step 3: bad."


def test_the_clean_ranks_are_told_why() -> None:
    wgrad = message(40, group(5, 7), sent="nan", causes=to_origin(), carries="gradients")
    traces = [
        trace(5, origins=(traced_origin(),), arrivals=(wgrad,), departures=(wgrad,), sinks=(sink(to_origin()),)),
        trace(7, arrivals=(message(40, group(5, 7), carries="gradients"),), sinks=(sink(to_arrival(0)),)),
        trace(0),
    ]

    (note,) = conclude(incident(ranks=RankSets((5,), (7,), (0,))), traces).notes

    assert note == (
        "clean: rank 0; the bad values reached gradients of weights alone, which are summed up over ranks 5, 7 only, "
        "and no value that goes through the pipeline"
    )


def cause(code: str) -> RankedCause:
    return RankedCause(code, 0.9, ("fact",), (), (), "")
