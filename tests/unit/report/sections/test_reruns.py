"""The replay of the step, and the suspect call run alone."""

from __future__ import annotations

from dataclasses import replace as but

import pytest

from megatron_nanguard.diagnosis.suspect_call import conclusion
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import ReplayPass, ReplaySummary
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.sections import reruns
from tests.unit.diagnosis.factories import arbitration
from tests.unit.report.factories import described, opened_incident


def test_a_replay_that_was_not_done_has_no_section() -> None:
    assert reruns.describe_replay(opened_incident(replay=ReplaySummary(why_not="no room"))) is None


def test_every_pass_shows_its_result_and_its_question() -> None:
    summary = ReplaySummary(
        done=True,
        exact=True,
        stages=("plain: 0.34 s", "traced, micro-batch 2: 0.90 s", "loss scale / 256: 0.35 s", "not restored: rng"),
        passes=(ReplayPass("plain", "yes"), ReplayPass("traced", "partly")),
        lower_scale="finite",
    )

    assert reruns.describe_replay(opened_incident(replay=summary)) == Block(
        "The step run again",
        text=("The plain pass repeated the step bit for bit.",),
        columns=("pass", "result", "seconds", "what it asks"),
        rows=(
            ("plain", "bad again", "0.34", "The same step without tracing: does the fault come back?"),
            (
                "traced, micro-batch 2",
                "bad on other ranks",
                "0.90",
                "Every operator is checked: where does the fault begin?",
            ),
            (
                "loss scale / 256",
                "finite",
                "0.35",
                "The same step at a much lower loss scale: does the scale make it overflow?",
            ),
        ),
        notes=("not restored: rng",),
    )


def test_a_marker_pass_is_named_and_shows_its_result() -> None:
    summary = ReplaySummary(done=True, stages=("marker fill: 0.11 s",), passes=(ReplayPass("marker", "no"),))
    assert described(reruns.describe_replay, opened_incident(replay=summary)).rows[0][:2] == ("marker fill", "finite")


@pytest.mark.parametrize(
    ("finite_exact", "words"),
    [
        (True, "The plain pass differs from the step, but all values that are finite in both are equal bit for bit."),
        (False, "The plain pass differs from the step, also in values that are finite in both."),
        (None, "The plain pass differs from the step."),
    ],
)
def test_a_replay_that_is_not_bit_exact_shows_the_difference(finite_exact: bool | None, words: str) -> None:
    inexact = ReplaySummary(done=True, exact=False, finite_exact=finite_exact)
    assert described(reruns.describe_replay, opened_incident(replay=inexact)).text == (words,)


def test_values_that_became_finite_have_a_sentence() -> None:
    healed = ReplaySummary(done=True, exact=False, finite_exact=True, passes=(ReplayPass("plain", "no"),))
    sets = RankSets((1,), (0,), ())

    words = "In the plain pass the NaN and Inf of rank 1 became finite; everything else is equal bit for bit."
    assert described(reruns.describe_replay, opened_incident(replay=healed, ranks=sets)).text == (words,)
    assert described(
        reruns.describe_replay, opened_incident(replay=but(healed, only_losses=(1,)), ranks=sets)
    ).text == (
        words,
        "No gradient of rank 1 was finite in the step, so only their losses were compared.",
    )


def test_without_a_call_there_is_no_section() -> None:
    assert reruns.describe_suspect_call(opened_incident()) is None


def test_runs_of_the_call_that_were_not_made_are_left_out() -> None:
    call = arbitration()
    assert described(reruns.describe_suspect_call, opened_incident(arbitrations=(call,))).rows == (
        ("call", "aten.log.default on rank 5, decoder.layers.3.mlp"),
        ("conclusion", conclusion(call)),
    )


def test_every_run_of_the_call_is_shown() -> None:
    call = arbitration(
        repeats=8,
        repeats_bad=2,
        peer="bad",
        peer_is_alike=True,
        peer_rank=7,
        peer_device="cuda NVIDIA H200",
        reference_fp32="finite",
        reference_fp64="finite",
        reference="softmax",
        out_of_range=True,
        note="inputs from host memory",
    )

    assert reruns.describe_suspect_call(opened_incident(arbitrations=(call,))) == Block(
        "The suspect call, run again on its own",
        rows=(
            ("call", "aten.log.default on rank 5, decoder.layers.3.mlp"),
            ("same device", "NaN or Inf in 2 of 8 runs"),
            ("another device", "NaN or Inf on rank 7 (cuda NVIDIA H200, the same model on the same host)"),
            ("float32 on CPU", "finite (softmax)"),
            ("float64 on CPU", "finite (softmax), beyond the range of the type it is stored in"),
            ("note", "inputs from host memory"),
            ("conclusion", conclusion(call)),
        ),
    )


def test_many_calls_are_counted() -> None:
    block = described(reruns.describe_suspect_call, opened_incident(arbitrations=(arbitration(),) * 5))

    assert len(block.rows) == 6
    assert block.notes == ("... and 2 more calls",)
