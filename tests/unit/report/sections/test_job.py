"""What became of the job."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.records.fingerprint import Fingerprint
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.records.json.conversion import to_json
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections.job import job_words
from tests.unit.factories import incident
from tests.unit.report.factories import opened_incident

STOPPED = "stopped on every rank with exit code 65, before any weight changed"
ANYWHERE = "start again from the last checkpoint before step 3"


def started(tmp_path: Path, run_id: str = "20260101-120000-ab12", **arguments: str) -> OpenedIncident:
    """An incident whose run wrote what it was started with."""
    fingerprint = Fingerprint(
        run_id=run_id,
        started="2026-01-01T12:00:00Z",
        world_size=8,
        versions={},
        arguments=arguments,
        environment={},
        kernel_backends={},
        host_changes=(),
    )
    (tmp_path / "fingerprint.json").write_bytes(to_json(fingerprint))
    return OpenedIncident(incident(), tmp_path / "incidents" / "step_00000003")


def test_a_stopped_job_names_its_exit_code_and_where_to_start_again(tmp_path: Path) -> None:
    assert job_words(opened_incident()) == f"{STOPPED}; {ANYWHERE}"
    assert job_words(started(tmp_path, save="/data/ckpt")) == f"{STOPPED}; {ANYWHERE}, in /data/ckpt"


def test_without_a_checkpoint_none_is_promised(tmp_path: Path) -> None:
    words = f"{STOPPED}; no --save was given, so there is no checkpoint to start again from"
    assert job_words(started(tmp_path, save="None")) == words


def test_the_start_of_another_run_tells_nothing(tmp_path: Path) -> None:
    assert job_words(started(tmp_path, run_id="another", save="/data/ckpt")) == f"{STOPPED}; {ANYWHERE}"


def test_a_job_that_goes_on_says_what_became_of_the_step() -> None:
    skip = PolicyOutcome("skip", "skip", None, "Policy skip: the step is skipped on all ranks.")
    keep = PolicyOutcome("continue", "continue", None, "")

    assert job_words(opened_incident(policy=skip)) == "goes on: this step was skipped, no weight changed"
    assert job_words(opened_incident(policy=keep)) == (
        "goes on: this step was applied all the same, weights may hold NaN or Inf now"
    )


def test_a_policy_that_had_to_give_way_says_why() -> None:
    outcome = PolicyOutcome("skip", "abort", 65, "Too many skips.")
    assert job_words(opened_incident(policy=outcome)) == f"{STOPPED} (Too many skips); {ANYWHERE}"


def test_a_step_that_was_applied_before_it_was_seen_did_change_weights() -> None:
    assert job_words(opened_incident(kind=Kind.DEAD_STEP)).startswith(
        "stopped on every rank with exit code 65, after the step had been applied"
    )


def test_where_nobody_lived_nothing_is_claimed() -> None:
    nobody = PolicyOutcome("abort", "unknown", None, "not known")
    assert job_words(opened_incident(policy=nobody)) == "not known: no rank lived to write what was done"
