"""What the run was started with, and what is different here."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.reloading.reload_job import changed_arguments, command_line
from tests.unit.factories import fingerprint

INCIDENT = "runs/run-1/incidents/step_00000003"


def incident(folder: Path, command: tuple[str, ...] = (), **arguments: str) -> Path:
    """The directory of an incident in a run with this command line and these arguments."""
    path = folder / INCIDENT
    path.mkdir(parents=True)
    started = fingerprint(run_id="run-1", arguments=arguments, command_line=command)
    (path.parents[1] / "fingerprint.json").write_bytes(to_json(started))
    return path


def test_the_command_line_of_the_run_comes_first_so_that_what_is_given_wins(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    path = incident(tmp_path, (str(script), "--lr", "1"))
    assert command_line(path, ["--lr", "2"]) == [str(script), "--lr", "1", "--lr", "2"]


def test_a_script_that_is_given_comes_with_all_its_arguments(tmp_path: Path) -> None:
    assert command_line(tmp_path / INCIDENT, ["mine.py", "--lr", "2"]) == ["mine.py", "--lr", "2"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((), "fingerprint.json has no command line; give the script and its arguments after DIR"),
        (("gone.py", "--lr"), "the run's script gone.py is not here; go to the directory it was started in, or give"),
    ],
)
def test_a_run_that_cannot_be_started_again_says_what_to_give(
    tmp_path: Path, command: tuple[str, ...], message: str
) -> None:
    with pytest.raises(PostmortemError, match=message):
        command_line(incident(tmp_path, command), [])


def test_an_incident_away_from_its_run_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(PostmortemError, match=r"fingerprint\.json is not there; give the script and its arguments"):
        command_line(tmp_path / "a/b/c", [])


def test_only_arguments_that_differ_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = incident(tmp_path, lr="1.0", impl="local", rank="0", log_interval="1", nanguard="True", old="1")
    here = Namespace(lr=1.0, impl="transformer_engine", rank=5, log_interval=9, nanguard=False, new=2)
    monkeypatch.setattr(host_program, "arguments", lambda: here)
    assert list(changed_arguments(path)) == [
        "argument impl is transformer_engine here, it was local",
        "argument new is 2 here, it was None",
        "argument old is None here, it was 1",
    ]


def test_a_host_without_arguments_has_nothing_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_program, "arguments", lambda: None)
    assert list(changed_arguments(incident(tmp_path, lr="1.0"))) == []
