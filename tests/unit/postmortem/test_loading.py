"""An incident is read as it was merged, and else from whatever its ranks left."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.loading import check_incident, load_incident, merge_directory, read_traces
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.postmortem import RankSets
from tests.unit.factories import ABORT, SETS, demo_postmortem, incident, postmortem


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


def test_files_of_ranks_are_merged_if_the_run_did_not(tmp_path: Path) -> None:
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


def test_the_files_of_the_ranks_replace_a_damaged_incident(tmp_path: Path) -> None:
    directory = write_ranks(tmp_path, "run")
    (directory / "incident.json").write_text("{")

    found = load_incident(tmp_path)

    assert not found.incident.causes
    assert found.incident.ranks == SETS
    assert found.incident.notes[0].startswith(f"{directory}/incident.json: not JSON")


def test_an_incident_without_verdict_is_merged_again_and_keeps_what_was_done(tmp_path: Path) -> None:
    directory = write_ranks(tmp_path, "run")
    early = replace(merge_directory(directory, policy=ABORT), missing_ranks=(7,), parameters=())
    (directory / "incident.json").write_bytes(to_json(early))

    found = load_incident(tmp_path)

    assert not found.incident.causes
    assert (found.incident.policy, found.incident.missing_ranks) == (ABORT, ())
    assert found.incident.parameters


def test_an_incident_with_a_verdict_is_not_merged_again(tmp_path: Path) -> None:
    directory = write_ranks(tmp_path, "run")
    cause = RankedCause("numerics", 0.5, ("a",), (), (), "")
    (directory / "incident.json").write_bytes(to_json(incident(causes=(cause,))))

    found = load_incident(tmp_path)

    assert found.incident == incident(causes=(cause,))


def test_ranks_without_file_are_missing_even_if_no_rank_reached_the_exchange(tmp_path: Path) -> None:
    for rank in (1, 4):
        RunDirectory(tmp_path, "run", no_log).write_postmortem("incidents/step_00000003", postmortem(rank, ranks=None))

    assert load_incident(tmp_path).incident.missing_ranks == (0, 2, 3, 5, 6, 7)


def test_an_incident_of_another_step_than_asked_for_is_an_error(tmp_path: Path) -> None:
    merged = write_incident(tmp_path, "run", step=3)

    with pytest.raises(PostmortemError, match=r" is the incident of step 3, not of step 4$"):
        load_incident(merged, step=4)


def test_an_unreadable_trace_is_marked_broken_under_its_rank(tmp_path: Path) -> None:
    (tmp_path / "trace00005_tp1pp1dp0.json").write_text('{"rank": "x"}')

    (broken,) = read_traces(tmp_path)

    assert (broken.rank, broken.coords) == (5, "tp1pp1dp0")
    assert broken.broken == "trace00005_tp1pp1dp0.json: key rank is 'x', expected an integer"


def test_an_incident_as_a_run_writes_it_passes() -> None:
    check_incident(incident(ranks=SETS), "x")


@pytest.mark.parametrize("confidence", [-0.1, 1.5, math.nan])
def test_a_confidence_outside_of_0_to_1_is_refused(confidence: float) -> None:
    causes = (RankedCause("data", 0.5, (), (), (), ""), RankedCause("numerics", confidence, (), (), (), ""))

    with pytest.raises(PostmortemError, match=rf"^x: key causes\[1\]\.confidence is {confidence}, expected 0 to 1$"):
        check_incident(incident(causes=causes), "x")


def test_a_rank_outside_of_the_run_is_refused() -> None:
    with pytest.raises(PostmortemError, match=r"^x: key ranks\.clean holds 8, expected 0 to 7$"):
        check_incident(incident(ranks=RankSets((0,), (), (7, 8))), "x")
