"""A merged incident and its traces become one with origin, causes and advice."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.incident import Incident, Infected, MicrobatchLosses
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import ReplayPass, ReplaySummary
from tests.unit.diagnosis.factories import group, message, origin, sink, to_arrival, to_origin, trace, traced_origin
from tests.unit.factories import incident

TWO = incident(ranks=RankSets((4, 5), (), ()), infected=(Infected(4, "by the layout", "", ()),))
FINITE_LOSS = MicrobatchLosses(2, 2, 1.0, 1.5, ())


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


def test_without_an_operator_a_bad_loss_shows_by_when_it_had_begun() -> None:
    losses = (MicrobatchLosses(0, 2, 1.0, 1.5, ()), MicrobatchLosses(1, 2, 1.0, 1.0, (1,)))
    gone = ReplaySummary(done=True, passes=(ReplayPass("plain", "no"),))
    known = incident(summary="Step 3: bad.", losses=losses, replay=gone)

    assert conclude(known, ()).summary == (
        "Step 3: bad. The loss of micro-batch 1 was NaN or Inf on rank 1, so it began by the end of that forward; "
        "the operator is not known: the replay was clean."
    )
    assert conclude(replace(known, losses=losses[:1]), ()).summary == "Step 3: bad."


def test_a_note_says_why_ranks_are_clean() -> None:
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


def test_ranks_that_were_sent_bad_values_are_distinguished_from_the_origin() -> None:
    infected = (Infected(4, "TP all-reduce", "g", (5,)), Infected(7, "DP gradient all-reduce", "h", (5,)))
    known = incident(origin=(origin(),), infected=infected, ranks=RankSets((4, 5), (7,), ()))

    assert conclude(known, ()).summary == (
        "Step 3: something was not finite. Rank 4 received bad values before it, by other communication."
    )


def test_without_an_origin_no_rank_is_known_to_have_received_bad_values() -> None:
    no_origin = incident(infected=(Infected(4, "x", "g", (5,)),))

    assert conclude(no_origin, ()).summary == no_origin.summary
    assert conclude(incident(origin=(origin(),)), ()).summary == no_origin.summary


def test_an_earlier_incident_that_its_values_explain_is_left_out() -> None:
    bad_before = RankSets((5,), (), ())
    explained, open_one = (
        incident(step=step, ranks=bad_before, causes=(RankedCause(code, 0.9, ("fact",), (), (), ""),))
        for step, code in ((1, "numerics"), (2, "undecided"))
    )
    now = incident(ranks=bad_before, replay=ReplaySummary(done=True, passes=(ReplayPass("plain", "no"),)))

    said = [fact for cause in conclude(now, (), (explained, open_one)).causes for fact in cause.for_ + cause.against]

    assert "rank 5 was the only bad rank in step 2 already" in said
    assert not [fact for fact in said if "step 1" in fact]


def test_options_of_the_host_reach_the_next_step() -> None:
    found = incident(origin=(origin(operator="FusedAttentionBackward", source_line=None),), losses=(FINITE_LOSS,))

    def first_step(**options: str) -> str:
        return next(cause.next for cause in conclude(found, (), (), options).causes if cause.next)

    assert "(now transformer_engine)" in first_step(transformer_impl="transformer_engine")
    assert "--transformer-impl" not in first_step(transformer_impl="local")
