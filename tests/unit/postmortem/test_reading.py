"""An incident is found under any path a person would give."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.directory import RunDirectory
from megatron_nanguard.postmortem.reading import earlier_incidents, load_incident, merge_directory
from tests.unit.factories import ABORT, SETS, demo_postmortem, incident


def no_log(line: str) -> None:
    raise AssertionError(line)


def write_incident(root: Path, run: str, step: int) -> Path:
    directory = RunDirectory(root, run, no_log)
    written = directory.write(f"{directory.incident_path(step)}/incident.json", incident(run_id=run, step=step))
    assert written is not None
    return written


def write_ranks(root: Path, run: str) -> Path:
    directory = RunDirectory(root, run, no_log)
    written = [directory.write_postmortem("incidents/step_00000003", demo_postmortem(rank)) for rank in range(8)]
    assert written[0] is not None
    return written[0].parent


def test_the_newest_incident_of_the_newest_run_is_found_from_the_root(tmp_path: Path) -> None:
    write_incident(tmp_path, "20260101-120000-ab12", step=90)
    write_incident(tmp_path, "20260102-120000-cd34", step=9)
    newest = write_incident(tmp_path, "20260102-120000-cd34", step=10)

    found = load_incident(tmp_path)

    assert (found.incident.run_id, found.incident.step) == ("20260102-120000-cd34", 10)
    assert found.directory == newest.parent


def test_a_run_without_incident_does_not_hide_an_older_one(tmp_path: Path) -> None:
    write_incident(tmp_path, "20260101-120000-ab12", step=3)
    (tmp_path / "runs/20260102-120000-cd34/status").mkdir(parents=True)

    assert load_incident(tmp_path).incident.run_id == "20260101-120000-ab12"


def test_the_run_the_incident_and_the_file_lead_to_the_same(tmp_path: Path) -> None:
    merged = write_incident(tmp_path, "run", step=3)

    for path in (tmp_path / "runs/run", merged.parent, merged):
        assert load_incident(path).directory == merged.parent


def test_the_second_incident_of_a_step_is_newer(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, "run", no_log)
    for _ in range(2):
        directory.write(f"{directory.incident_path(3)}/incident.json", incident())

    assert load_incident(tmp_path).directory.name == "step_00000003.1"


def test_files_of_ranks_are_merged_when_nobody_did(tmp_path: Path) -> None:
    directory = write_ranks(tmp_path, "run")

    found = load_incident(tmp_path)

    assert found.directory == directory
    assert found.incident.ranks == SETS
    assert found.incident.policy.action == "unknown"
    assert found.incident.files[5] == "rank00005_tp1pp1dp0.json"
    assert not (directory / "incident.json").exists()


def test_a_damaged_file_becomes_a_note_and_a_missing_rank(tmp_path: Path) -> None:
    directory = write_ranks(tmp_path, "run")
    (directory / "rank00006_tp0pp1dp1.json").write_text("{")

    merged = merge_directory(directory, policy=ABORT)

    assert merged.missing_ranks == (6,)
    assert len(merged.notes) == 1
    assert merged.notes[0].startswith("rank00006_tp0pp1dp1.json: not JSON")


def test_only_damaged_files_are_an_error_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "rank00000_tp0pp0dp0.json").write_text("{}")

    with pytest.raises(PostmortemError) as caught:
        load_incident(tmp_path)

    assert str(caught.value) == (
        f"{tmp_path}: no rank's post-mortem could be read; "
        "rank00000_tp0pp0dp0.json: key run_id is missing in Postmortem"
    )


def test_a_damaged_incident_names_its_file(tmp_path: Path) -> None:
    merged = write_incident(tmp_path, "run", step=3)
    merged.write_text('{"schema_version": 1, "run_id": 5}')

    with pytest.raises(PostmortemError) as caught:
        load_incident(tmp_path)

    assert str(caught.value) == f"{merged}: key run_id is 5, expected a string"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ((), "DIR does not exist; give the directory of --nanguard-dir, a run or an incident"),
        (("x/",), "DIR is no directory of --nanguard-dir: it has neither runs/ nor incidents/"),
        (("runs/a/", "runs/b/"), "DIR holds 2 runs and no incident"),
        (("incidents/",), "DIR holds no incident"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_it_is(tmp_path: Path, make: tuple[str, ...], message: str) -> None:
    directory = tmp_path / "DIR"
    for name in make:
        (directory / name).mkdir(parents=True)

    with pytest.raises(PostmortemError) as caught:
        load_incident(directory)

    assert str(caught.value).replace(f"{tmp_path}/", "") == message


def test_the_file_of_one_rank_points_to_its_directory(tmp_path: Path) -> None:
    file = write_ranks(tmp_path, "run") / "rank00000_tp0pp0dp0.json"

    with pytest.raises(PostmortemError, match=r"is not an incident\.json; give its directory$"):
        load_incident(file)


def test_earlier_incidents_of_the_run_are_read_in_order(tmp_path: Path) -> None:
    paths = [write_incident(tmp_path, "run", step) for step in (3, 20, 100, 200)]
    paths[0].write_text("{")

    assert [one.step for one in earlier_incidents(paths[2].parent)] == [20]
    assert [one.step for one in earlier_incidents(paths[3].parent)] == [20, 100]


def test_only_the_last_earlier_incidents_are_read(tmp_path: Path) -> None:
    paths = [write_incident(tmp_path, "run", step) for step in range(1, 20)]

    assert [one.step for one in earlier_incidents(paths[-1].parent)] == list(range(3, 19))
