"""Trainers on megatron.core alone: ranks that do not train, several optimizers, `prepare_grads` called by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.import_server import Finished, Server
from tests.ranks.run_files import RunFiles, read

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("worlds.py")
FC1 = "decoder.layers.0.mlp.linear_fc1.weight"
FC1_OF_THE_SECOND = "decoder.layers.1.mlp.linear_fc1.weight"


def run(
    ranks: Server, nproc: int, folder: Path, scenario: str, policy: str = "abort", in_rank: str | None = None
) -> Finished:
    """Train as `worlds.py` says, guarded by the environment alone."""
    env = {"SCENARIO": scenario, "NANGUARD": "1", "NANGUARD_ON_NONFINITE": policy}
    return ranks.run(nproc, SCRIPT, env=env, cwd=folder, linger=10, in_rank=in_rank)


def files_of(folder: Path) -> RunFiles:
    """Of the run that has an incident: a world that does not train has a directory of its own, without one."""
    (found,) = {path.parent.parent for path in folder.glob("nanguard/runs/*/incidents/*")}
    return RunFiles(found)


def bad_parameters(postmortem: dict[str, Any]) -> list[str]:
    return [parameter["name"] for parameter in postmortem["local"]["parameters"]]


def lines(finished: Finished, rank: int, first_word: str) -> list[str]:
    return [line for line in finished.lines(rank) if line.split(" ")[0] == first_word]


@pytest.mark.parametrize(
    ("scenario", "training", "faulty"),
    [("window", [0, 1, 2, 3], 1), ("strangers", [0, 1, 2, 3], 1), ("one_world", [2, 3, 4, 5], 3)],
)
def test_ranks_that_do_not_train_are_no_part_of_the_vote(
    ranks: Server, tmp_path: Path, scenario: str, training: list[int], faulty: int
) -> None:
    finished = run(ranks, 6, tmp_path, scenario)

    assert finished.codes == {rank: 65 if rank in training else 0 for rank in range(6)}
    files = files_of(tmp_path)
    assert files.incidents == ["step_00000003"]
    merged = files.merged(3)
    assert merged["ranks"] == {
        "bad_before": [faulty],
        "bad_after_only": [rank for rank in training if rank != faulty],
        "clean": [],
    }
    assert [group["words"] for group in merged["groups"]] == [f"rank {faulty} (DP 1)"]
    written = files.postmortems(3)
    assert [found["coordinates"]["rank"] for found in written.values()] == training
    assert [bad_parameters(found) for found in written.values()] == [
        [FC1] if rank == faulty else [] for rank in training
    ]
    assert [lines(finished, rank, "applied") for rank in training] == 4 * [2 * ["applied True"]]
    assert [rank for rank in range(6) if lines(finished, rank, "ended")] == sorted({*range(6)} - {*training})
    assert (files.path / "fingerprint.json").exists()


def test_a_world_that_is_built_again_is_met_again(ranks: Server, tmp_path: Path) -> None:
    finished = run(ranks, 2, tmp_path, "second_life")

    assert finished.codes == {0: 65, 1: 65}
    assert len(list(tmp_path.glob("nanguard/runs/*"))) == 2
    assert files_of(tmp_path).incidents == ["step_00000003"]
    assert files_of(tmp_path).merged(3)["ranks"] == {"bad_before": [1], "bad_after_only": [0], "clean": []}
    assert [bad_parameters(found) for found in files_of(tmp_path).postmortems(3).values()] == [[], [FC1]]


@pytest.mark.parametrize("in_rank", [None, "megatron_nanguard:enable"], ids=["factory held before", "factory patched"])
def test_two_optimizers_are_kept_apart(ranks: Server, tmp_path: Path, in_rank: str | None) -> None:
    finished = run(ranks, 2, tmp_path, "two_optimizers", in_rank=in_rank)

    assert finished.codes == {0: 65, 1: 65}
    # The first optimizer was asked first, with a NaN in the second one's buffer: it went on.
    assert [lines(finished, rank, "applied") for rank in (0, 1)] == [["applied True"], ["applied True"]]
    files = files_of(tmp_path)
    assert files.incidents == ["step_00000003"], "each counts its own steps"
    written = files.postmortems(3)
    assert [bad_parameters(found) for found in written.values()] == [[], [FC1_OF_THE_SECOND]]
    # Two votes in each of three steps: five clear, the sixth is the incident.
    assert [status["steps_guarded"] for status in files.statuses()] == [6, 6]
    assert [status["incidents"] for status in files.statuses()] == [1, 1]
    maps = sorted(files.path.glob("param_map_tp0pp0dp0*.json"))
    assert [path.name for path in maps] == ["param_map_tp0pp0dp0.1.json", "param_map_tp0pp0dp0.json"]
    names = [{entry["name"] for entry in read(path, "param_map")["entries"]} for path in maps]
    assert [FC1_OF_THE_SECOND in held for held in names] == [True, False]


def test_a_trainer_that_prepares_by_hand_votes_once_a_step(ranks: Server, tmp_path: Path) -> None:
    finished = run(ranks, 2, tmp_path, "prepared_by_hand", policy="continue")

    assert finished.code == 0, finished.out
    for rank in (0, 1):
        assert lines(finished, rank, "votes") == ["votes 1", "votes 2", "votes 3"]
        assert lines(finished, rank, "found") == 3 * ["found False"]
    assert files_of(tmp_path).incidents == ["step_00000003"]
    assert [status["incidents"] for status in files_of(tmp_path).statuses()] == [1, 1]


def test_a_foreign_trainer_is_not_given_skipped_steps(ranks: Server, tmp_path: Path) -> None:
    finished = run(ranks, 2, tmp_path, "prepared_by_hand", policy="skip")

    assert finished.codes == {0: 65, 1: 65}
    warning = "[nanguard] this trainer takes a skipped step for a fatal error: policy abort instead of skip"
    assert [rank for rank in (0, 1) if warning in finished.lines(rank)] == [0]
    assert files_of(tmp_path).merged(3)["policy"]["action"] == "abort"
