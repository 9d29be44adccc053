"""Arguments of a run, and what went before an incident in it and in earlier attempts of the same job."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_nanguard.postmortem.job_history import arguments_of_run, earlier_incidents, is_same_job
from megatron_nanguard.postmortem.run_directory import RunDirectory
from tests.unit.factories import fingerprint, incident

FIRST, SECOND, THIRD = "20260101T120000Z-ab12", "20260102T120000Z-cd34", "20260103T120000Z-ef56"
ARGUMENTS = {"num_layers": "4", "lr": "0.001", "consumed_train_samples": "0", "nanguard_on_nonfinite": "skip"}


def attempt(root: Path, run: str, *steps: int, **changes: object) -> list[Path]:
    """A run with its incidents."""
    directory = RunDirectory(root, run, pytest.fail)
    directory.write("fingerprint.json", fingerprint(run_id=run, **{"arguments": ARGUMENTS, **changes}))
    written = [
        directory.write(f"{directory.incident_path(step)}/incident.json", incident(run_id=run, step=step))
        for step in steps
    ]
    return [path.parent for path in written if path is not None]


def before(directory: Path) -> list[tuple[str, int]]:
    return [(one.run_id, one.step) for one in earlier_incidents(directory)]


def test_earlier_incidents_of_the_run_are_read_in_order(tmp_path: Path) -> None:
    paths = attempt(tmp_path, FIRST, 3, 20, 100, 200)
    (paths[0] / "incident.json").write_text("{")

    assert before(paths[2]) == [(FIRST, 20)]
    assert before(paths[3]) == [(FIRST, 20), (FIRST, 100)]


def test_the_tenth_incident_of_a_step_comes_after_the_ninth(tmp_path: Path) -> None:
    paths = attempt(tmp_path, FIRST, *[3] * 12)

    assert [path.name for path in paths[9:11]] == ["step_00000003.9", "step_00000003.10"]
    assert len(before(paths[9])) == 9
    assert len(before(paths[10])) == 10


def test_a_renamed_incident_has_no_earlier_ones_in_its_run(tmp_path: Path) -> None:
    attempt(tmp_path, FIRST, 120)
    path = attempt(tmp_path, SECOND, 90, 130)[1]

    assert before(path.rename(path.with_name("odd"))) == [(FIRST, 120)]


def test_incidents_of_earlier_attempts_come_first(tmp_path: Path) -> None:
    attempt(tmp_path, FIRST, 120)
    directory = attempt(tmp_path, SECOND, 90, 130)[1]
    attempt(tmp_path, THIRD, 50)

    assert before(directory) == [(FIRST, 120), (SECOND, 90)]


def test_only_the_last_few_incidents_are_read(tmp_path: Path) -> None:
    attempt(tmp_path, FIRST, 7, 8)
    paths = attempt(tmp_path, SECOND, *range(1, 17))

    assert before(paths[-1]) == [(FIRST, 8), *((SECOND, step) for step in range(1, 16))]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        (
            {"arguments": {**ARGUMENTS, "consumed_train_samples": "64", "rank": "3", "nanguard_on_nonfinite": "abort"}},
            True,
        ),
        ({"versions": {"torch": "2.14.0"}}, True),
        ({"arguments": {**ARGUMENTS, "lr": "0.0005"}}, False),
        ({"world_size": 16}, False),
    ],
)
def test_a_job_is_known_by_its_sizes_and_arguments(tmp_path: Path, changes: dict[str, object], same: bool) -> None:
    attempt(tmp_path, FIRST, 120)
    (directory,) = attempt(tmp_path, SECOND, 130, **changes)

    assert before(directory) == ([(FIRST, 120)] if same else [])


def test_two_trainers_without_arguments_are_not_taken_for_one_job() -> None:
    unknown = fingerprint(run_id=FIRST)

    assert not is_same_job(unknown, unknown)


def test_without_a_fingerprint_there_are_no_earlier_attempts(tmp_path: Path) -> None:
    attempt(tmp_path, FIRST, 120)
    paths = attempt(tmp_path, SECOND, 90, 130)
    (paths[0].parents[1] / "fingerprint.json").unlink()

    assert before(paths[1]) == [(SECOND, 90)]


def test_an_incident_copied_out_of_its_run_has_no_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "incident").mkdir()

    assert before(tmp_path / "incident") == []
    assert before(Path("/incident")) == []


def test_the_arguments_of_the_run_that_an_incident_is_in(tmp_path: Path) -> None:
    (incident,) = attempt(tmp_path, FIRST, 3)

    assert arguments_of_run(incident) == ARGUMENTS


def test_an_incident_copied_out_of_its_run_has_no_arguments(tmp_path: Path) -> None:
    assert arguments_of_run(tmp_path / "incidents" / "step_00000003") == {}
