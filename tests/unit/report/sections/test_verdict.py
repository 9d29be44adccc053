"""The first lines: origin, cause, job, and what to do next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_nanguard.diagnosis.texts import meaning
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.step.replay import ReplayPass, ReplaySummary
from megatron_nanguard.records.trace import OriginKind, TensorFacts
from megatron_nanguard.report.blocks import Block, Tone
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections import verdict
from megatron_nanguard.report.sections.verdict import job_words
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import fingerprint, incident
from tests.unit.report.factories import bundled, demo_rows, described, opened_incident

NUMERICS = RankedCause("numerics", 0.95, (), (), (), "the same steps with --lr halved")


JOB = (
    "stopped on every rank with exit code 65, before any weight changed; start again from the last checkpoint before "
    "step 3"
)


def sentence(**changes: object) -> str:
    return described(verdict.describe, opened_incident(origin=(origin(**changes),))).text[0]


def test_the_verdict_names_rank_host_module_cause_and_next_step() -> None:
    opened = opened_incident(rows=demo_rows(), origin=(origin(),), causes=(NUMERICS,))

    assert verdict.describe(opened) == Block(
        "Verdict",
        text=(
            "Step 3: rank 5 (tp1pp1dp0, host node1) made the first NaN: log in decoder.layers.3.mlp, "
            "backward of micro-batch 2.",
        ),
        rows=(
            ("cause", f"numerics (very likely, 0.95), no other cause fits. {meaning('numerics')}"),
            ("job", JOB),
            ("next", "the same steps with --lr halved"),
        ),
        tone=Tone.WORST,
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            OriginKind.OUTSIDE,
            "Step 3: rank 5 (tp1pp1dp0) had NaN before the step began: log, first read in backward of micro-batch 2.",
        ),
        (
            OriginKind.UNSEEN,
            "Step 3: rank 5 (tp1pp1dp0) has the first NaN that is known, and no operator that the tracer sees wrote "
            "it: grad of k.",
        ),
        (
            OriginKind.NEVER_WRITTEN,
            "Step 3: rank 5 (tp1pp1dp0) read memory that nothing had written, and got NaN: log in "
            "decoder.layers.3.mlp, backward of micro-batch 2.",
        ),
        (
            OriginKind.COMMUNICATION,
            "Step 3: log in decoder.layers.3.mlp gave rank 5 (tp1pp1dp0) NaN though every member sent finite values: "
            "backward of micro-batch 2, model.py:7 in f.",
        ),
        (
            OriginKind.SCALER,
            "Step 3: the loss scale was too large, rank 5 (tp1pp1dp0) overflowed to NaN: log in "
            "decoder.layers.3.mlp, backward of micro-batch 2.",
        ),
    ],
)
def test_every_kind_of_origin_has_its_sentence(kind: OriginKind, words: str) -> None:
    assert sentence(kind=kind, output="grad of k") == words


@pytest.mark.parametrize(
    ("operator", "output", "words"),
    [
        ("_LayerNormLinear.forward", "0", "_LayerNormLinear.forward in decoder.layers.3.mlp"),
        ("_LinearBackward", "grad of x", "_LinearBackward in decoder.layers.3.mlp, grad of x"),
    ],
)
def test_a_region_is_named_with_its_argument(operator: str, output: str, words: str) -> None:
    assert sentence(kind=OriginKind.UNSEEN, operator=operator, output=output) == (
        f"Step 3: rank 5 (tp1pp1dp0) made the first NaN: {words}, backward of micro-batch 2."
    )


def test_what_a_region_left_unwritten_is_named_with_its_rows() -> None:
    facts = TensorFacts("0", (8, 4), "float32", "nan", 8, 0, layout="rows 6 to 7")

    assert sentence(kind=OriginKind.NEVER_WRITTEN, operator="_GroupedLinear.forward", facts=facts) == (
        "Step 3: rank 5 (tp1pp1dp0) read memory that _GroupedLinear.forward in decoder.layers.3.mlp had left "
        "unwritten, rows 6 to 7, and got NaN: backward of micro-batch 2."
    )


def test_an_origin_of_several_ranks_names_them() -> None:
    said = sentence(kind=OriginKind.COMMUNICATION, operator="allreduce_", output="no. 4", pattern="inf", ranks=(4, 5))

    assert said == (
        "Step 3: allreduce_ in decoder.layers.3.mlp gave ranks 4, 5 Inf though every member sent finite values: "
        "backward of micro-batch 2, model.py:7 in f."
    )


def test_further_origins_are_counted() -> None:
    block = described(verdict.describe, opened_incident(origin=(origin(), origin(rank=2), origin(rank=3))))

    assert block.text[0].endswith(", backward of micro-batch 2, and 2 more origins independent of it.")


@pytest.mark.parametrize(
    ("replay", "why"),
    [
        (ReplaySummary(why_not="no room"), "no room"),
        (ReplaySummary(), "the step was not run again"),
        (
            ReplaySummary(True, passes=(ReplayPass("plain", "no"),)),
            "the fault did not come back when the step was run again",
        ),
        (
            ReplaySummary(True, passes=(ReplayPass("plain", "yes"),)),
            "tracing back from the bad values found no origin",
        ),
    ],
)
def test_without_an_origin_the_summary_comes_first_and_the_reason_is_said(replay: ReplaySummary, why: str) -> None:
    block = described(verdict.describe, opened_incident(replay=replay))

    assert block.text == ("Step 3: something was not finite.",)
    assert block.notes == (f"Where it began is not known: {why}.",)
    assert block.rows == (("job", JOB),)


def test_an_undecided_verdict_shows_no_confidence() -> None:
    undecided = RankedCause("undecided", 0.7, (), (), (), "")

    assert described(verdict.describe, opened_incident(causes=(undecided, NUMERICS))).rows == (
        ("cause", "undecided: numerics (very likely, 0.95), no other cause fits"),
        ("job", JOB),
        ("next", "the same steps with --lr halved"),
    )


def test_the_second_cause_is_named_and_an_undecided_verdict_names_two() -> None:
    operator = RankedCause("operator", 0.4, (), (), (), "")
    undecided = RankedCause("undecided", 0.7, (), (), (), "")

    decided = dict(described(verdict.describe, opened_incident(causes=(NUMERICS, operator))).rows)
    open_still = dict(described(verdict.describe, opened_incident(causes=(undecided, NUMERICS, operator))).rows)
    nothing = dict(described(verdict.describe, opened_incident(causes=(undecided,))).rows)

    assert decided["cause"].startswith("numerics (very likely, 0.95), ahead of faulty operator (possible, 0.40). ")
    assert open_still["cause"] == "undecided: numerics (very likely, 0.95) or faulty operator (possible, 0.40)"
    assert nothing["cause"] == "undecided: no evidence for any cause"


def test_the_command_is_whole_and_on_its_own_line(tmp_path: Path) -> None:
    look = replace(NUMERICS, next="open model.py:7; confirm with: python bundle/repro.py")

    block = described(verdict.describe, OpenedIncident(incident(causes=(look,)), bundled(tmp_path)))

    assert block.commands == (f"python {tmp_path}/bundle/repro.py",)
    assert block.rows[-1] == ("next", "open model.py:7")
    assert described(verdict.describe, opened_incident(causes=(look,))).commands == ()


STOPPED = "stopped on every rank with exit code 65, before any weight changed"
ANYWHERE = "start again from the last checkpoint before step 3"


def started(tmp_path: Path, run_id: str = "20260101-120000-ab12", **arguments: str) -> OpenedIncident:
    """An incident in a run with these arguments."""
    (tmp_path / "fingerprint.json").write_bytes(to_json(fingerprint(run_id=run_id, arguments=arguments)))
    return OpenedIncident(incident(), tmp_path / "incidents" / "step_00000003")


def test_a_stopped_job_names_its_exit_code_and_where_to_start_again(tmp_path: Path) -> None:
    assert job_words(opened_incident()) == f"{STOPPED}; {ANYWHERE}"
    assert job_words(started(tmp_path, save="/data/ckpt")) == f"{STOPPED}; {ANYWHERE}, in /data/ckpt"


def test_without_a_checkpoint_no_place_to_resume_is_named(tmp_path: Path) -> None:
    words = f"{STOPPED}; no --save was given, so there is no checkpoint to start again from"
    assert job_words(started(tmp_path, save="None")) == words


def test_the_fingerprint_of_another_run_is_ignored(tmp_path: Path) -> None:
    assert job_words(started(tmp_path, run_id="another", save="/data/ckpt")) == f"{STOPPED}; {ANYWHERE}"


def test_for_a_job_that_goes_on_the_fate_of_the_step_is_shown() -> None:
    skip = PolicyOutcome("skip", "skip", None, "Policy skip: the step is skipped on all ranks.")
    keep = PolicyOutcome("continue", "continue", None, "")

    assert job_words(opened_incident(policy=skip)) == "goes on: this step was skipped, no weight changed"
    assert job_words(opened_incident(policy=keep)) == (
        "goes on: this step was applied anyway, weights may hold NaN or Inf now"
    )


def test_a_policy_that_was_replaced_is_shown_with_the_reason() -> None:
    outcome = PolicyOutcome("skip", "abort", 65, "Too many skips.")
    assert job_words(opened_incident(policy=outcome)) == f"{STOPPED} (Too many skips); {ANYWHERE}"


def test_for_an_applied_step_the_report_says_that_weights_changed() -> None:
    assert job_words(opened_incident(kind=Kind.DEAD_STEP)).startswith(
        "stopped on every rank with exit code 65, after the step had been applied"
    )


def test_nothing_is_claimed_about_a_job_whose_ranks_all_died() -> None:
    nobody = PolicyOutcome("abort", "unknown", None, "not known")
    assert (
        job_words(opened_incident(policy=nobody)) == "not known: every rank ended before it could write what was done"
    )
