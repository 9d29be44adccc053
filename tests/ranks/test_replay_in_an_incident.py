"""What a replay may not do to a run: change how it goes on, keep the others waiting, or cost the incident."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.import_server import Finished, Server
from tests.ranks.layouts import LAYOUTS
from tests.ranks.run_files import RunFiles
from tests.ranks.test_failures import DRILL, SMALL
from tests.ranks.test_failures import SCRIPT as MISBEHAVE
from tests.ranks.test_healthy import differences
from tests.ranks.test_origins import train

pytestmark = pytest.mark.ranks

FAULTS = {"A": "1:1", "AR": "7:2", "B": "3:1", "C": "2:1", "D1": "0:1", "D2": "1:1", "E": "3:5", "F": "5:2", "G": "6:2"}
FAULTS["H"] = "3:1"
"""Rank and layer of a log of negative numbers in the forward of the second micro-batch: one that comes back in every
replay, then one that does not, so that what a replay leaves behind is not what the first pass left."""
BY_DEFAULT = ("A", "D1")
OF_EVERY_PASS = ("loss ", "tokens ")
"""The script notes them for replayed micro-batches too."""


# The run goes on ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.long) for name in FAULTS]
)
def test_a_run_that_replays_and_skips_goes_on_as_one_that_only_skips(ranks: Server, tmp_path: Path, name: str) -> None:
    replayed, skipped = (ended(ranks, name, tmp_path / replay, replay) for replay in ("auto", "off"))

    for rank, (after_replay, after_skip) in enumerate(zip(replayed, skipped, strict=True)):
        assert differences(after_skip["state"], after_replay["state"]) == [], f"rank {rank}"
        assert after_skip["gradients"] == after_replay["gradients"], f"rank {rank}: those of the first pass"
    runs = [RunFiles.only_one_of(tmp_path / replay) for replay in ("auto", "off")]
    assert [run.incidents for run in runs] == [["step_00000002", "step_00000003"]] * 2
    assert [[run.merged(step)["replay"]["exact"] for step in (2, 3)] for run in runs] == [[True, False], [None, None]]


def ended(ranks: Server, name: str, folder: Path, replay: str) -> list[dict[str, Any]]:
    """The state in which each rank ends, and what its gradient buffers held after every step."""
    faults = f"2=forward_log:{FAULTS[name]}:mlp:1;3=transient:{FAULTS[name]}:mlp:1"
    finished = train(
        *(ranks, LAYOUTS[name].plus("--train-iters", "4"), folder, faults, "--nanguard-replay", replay),
        END_STATE_DIR=str(folder),
        GRADIENTS_DIR=str(folder),
    )
    assert finished.out.count("number of skipped iterations:   1") == 2
    found = []
    for rank in range(LAYOUTS[name].nproc):
        state = torch.load(folder / f"rank{rank}.pt")["state"]
        gradients = json.loads((folder / f"gradients{rank}.json").read_text())
        assert len({gradients[0], gradients[2], gradients[3]}) == 3
        kept = {key: value for key, value in state.items() if not key.startswith(OF_EVERY_PASS)}
        found.append({"state": kept, "gradients": gradients})
    return found


# Nothing waits, nothing is lost -------------------------------------------------------------------------------------


def misbehaving(ranks: Server, folder: Path, misbehaviour: str, at_fault: str, *more: str) -> Finished:
    args = SMALL.plus("--nanguard", *DRILL, *more).args
    env = {"MISBEHAVIOUR": misbehaviour, "AT_FAULT": at_fault}
    # The ranks are left to end by themselves: the launcher is not to do it for them.
    return ranks.run(4, MISBEHAVE, args, env=env, cwd=folder, linger=30)


def test_a_rank_out_of_memory_in_the_traced_replay_takes_all_along_and_the_evidence_stays(
    ranks: Server, tmp_path: Path
) -> None:
    finished = misbehaving(ranks, tmp_path, "run_out_of_memory_when_traced", "3")
    seconds = time.time() - (tmp_path / "out_of_memory").stat().st_mtime

    assert finished.codes == dict.fromkeys(range(4), 65), finished.out
    assert "the incident failed on rank 3 in stage 'traced replay': planted by the test" in finished.out
    assert seconds < 10, "from the error to the end of the last rank"
    run = RunFiles.only_one_of(tmp_path / "nanguard")
    told = run.postmortems(2)
    assert [own["phase"] for own in told.values()] == ["signal"] * 4
    assert [own["flags"]["local"] for own in told.values()] == [True, True, False, False]
    merged = run.merged(2)
    assert merged["ranks"] == {"bad_before": [0, 1], "bad_after_only": [2, 3], "clean": []}
    assert (merged["policy"]["action"], merged["causes"], len(merged["files"])) == ("unknown", [], 4)


@pytest.mark.parametrize(
    ("misbehaviour", "more", "reasons", "together"),
    [
        (
            "nothing",
            ("--nanguard-replay", "off"),
            {0: "--nanguard-replay off", 3: "--nanguard-replay off"},
            "switched off (--nanguard-replay off)",
        ),
        # Rank 2 reads the data of its replica; rank 3 gets it from there.
        (
            "take_data_that_cannot_be_copied",
            (),
            {0: "rank 2 cannot", 2: "a micro-batch holds a lock"},
            "rank 2 cannot run the step again: a micro-batch holds a lock, which cannot be copied "
            "(cannot pickle '_thread.lock' object)",
        ),
        (
            "take_data_from_a_feed",
            (),
            {0: "rank 2 cannot", 2: "the data iterator is a Feed, which is no iterator"},
            "rank 2 cannot run the step again: the data iterator is a Feed, which is no iterator",
        ),
        (
            "take_data_from_elsewhere",
            (),
            {0: "rank 2 cannot", 2: "the data came from elsewhere"},
            "rank 2 cannot run the step again: no micro-batch was taken through the data iterator of the schedule; "
            "the data came from elsewhere, and cannot be handed out again",
        ),
    ],
)
def test_where_no_replay_is_possible_the_incident_ends_without_it_and_says_why(
    ranks: Server, tmp_path: Path, misbehaviour: str, more: tuple[str, ...], reasons: dict[int, str], together: str
) -> None:
    finished = misbehaving(ranks, tmp_path, misbehaviour, "2", "--nanguard-on-nonfinite", "skip", *more)

    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(tmp_path / "nanguard")
    told = list(run.postmortems(2).values())
    assert [(own["phase"], own["replay"]["done"]) for own in told] == [("complete", False)] * 4
    for rank, reason in reasons.items():
        assert reason in told[rank]["replay"]["why_not"]
    merged = run.merged(2)
    assert merged["ranks"] == {"bad_before": [0, 1], "bad_after_only": [2, 3], "clean": []}
    assert merged["parameters"] and merged["infected"] and merged["causes"]
    assert merged["origin"] == []
    assert merged["replay"]["done"] is False
    assert merged["replay"]["why_not"] == together
