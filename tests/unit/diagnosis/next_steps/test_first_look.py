"""The line of source comes before any experiment, where the cause is one that a line can show."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.diagnosis.next_steps.first_look import first_look
from megatron_nanguard.records.incident import BatchSpot
from megatron_nanguard.records.step.replay import AuditFinding
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import FINITE, LINE, arbitration, case, origin

FUNCTION = "model.py:9 in Poisoned.backward"


def test_a_custom_function_is_the_first_clue_of_a_wrong_operator() -> None:
    known = case(origin=(origin(operator="mm", function_line=FUNCTION),))

    assert first_look("operator", known) == (
        f"read {FUNCTION} first: the backward of a custom autograd.Function, in which it began"
    )
    assert first_look("operator", case(origin=(origin(operator="mm"),))) == ""
    assert first_look("hardware_transient", known) == ""


def test_values_outside_of_the_domain_are_looked_for_at_their_line() -> None:
    measured = origin(inputs=(replace(FINITE, lowest=-2.5, highest=-1.0),))
    call = (arbitration(),)

    assert first_look("numerics", case(origin=(measured,), arbitrations=call)) == (
        f"open {LINE}, and find why log gets values from -2.5 to -1 there; confirm with: python bundle/repro.py"
    )
    assert first_look("numerics", case(origin=(origin(),))) == f"open {LINE}, and look at what log gets there"


def test_a_sample_and_a_writer_and_an_unwritten_buffer_are_named() -> None:
    bad = AuditFinding("batch", "micro-batch 2, key weights", "nan", 5)
    unwritten = origin(kind=OriginKind.NEVER_WRITTEN, operator="half_written")

    assert first_look("data", case(audit=(bad,))) == (
        "find the sample behind micro-batch 2, key weights on rank 5: it held nan as it was fetched"
    )
    assert first_look("data", case()) == ""
    assert first_look("uninitialised_or_race", case(changed_after_fetch=(BatchSpot(5, 2), BatchSpot(1, 0)))) == (
        "find what writes into the batch of ranks 1, 5 after it was fetched, such as a pinned buffer that the loader "
        "uses again"
    )
    assert first_look("uninitialised_or_race", case(origin=(unwritten,))) == (
        f"open {LINE}, and find what half_written leaves unwritten there"
    )


def test_nothing_to_look_at() -> None:
    assert first_look("numerics", case()) == ""
    assert first_look("numerics", case(origin=(origin(source_line=None),))) == ""


def test_a_sum_that_overflows_is_looked_at_where_it_is_called() -> None:
    overflow = origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", pattern="inf", inputs=())
    sent = replace(FINITE, dtype="float16", absmax=4e4)
    wider = "then reduce in float32 there, or scale down before the sum"

    assert first_look("numerics", case(origin=(overflow,))) == (
        f"print type and largest value that each rank sends at {LINE}; {wider}"
    )
    assert first_look("numerics", case(origin=(replace(overflow, inputs=(sent,)),))) == (
        f"open {LINE}: each rank sends float16 up to 40000; {wider}"
    )
    assert first_look("numerics", case(origin=(replace(overflow, operator="broadcast_"),))) == ""


def test_a_call_that_was_given_a_nan_confirms_nothing() -> None:
    known = case(origin=(origin(),), arbitrations=(arbitration(inputs_bad=True),))

    assert "confirm" not in first_look("numerics", known)
