"""The arguments of a run, from the file it leaves at its start."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.postmortem.arguments import arguments_of_run
from tests.unit.postmortem.test_job_history import ARGUMENTS, FIRST, attempt


def test_the_arguments_of_the_run_that_an_incident_is_in(tmp_path: Path) -> None:
    (incident,) = attempt(tmp_path, FIRST, 3)

    assert arguments_of_run(incident) == ARGUMENTS


def test_an_incident_that_was_carried_elsewhere_has_none(tmp_path: Path) -> None:
    assert arguments_of_run(tmp_path / "incidents" / "step_00000003") == {}
