"""Replays at the decision point on every rank are the same bit for bit, and the run goes on unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.import_server import Server
from tests.ranks.conftest import EndStates
from tests.ranks.layouts import LAYOUTS
from tests.ranks.test_healthy import differences

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("replaying.py")
ALWAYS = ("A", "D1")
PLANS = {
    "A": "1: plain; 2: device, tracker, zeroing; 3: plain",
    "C": "1: plain, accumulators; 2: accumulators; 3: plain",
    "D1": "1: plain; 2: grad_mode, zeroing; 3: plain",
    "F": "1: plain, accumulators; 2: buffers; 3: plain",
}
PLAIN = "1: plain; 3: plain"
DAMAGE = {
    "plain": [],
    "device": ["gradients", "random"],
    "tracker": ["gradients", "random"],
    "zeroing": ["gradients"],
    "grad_mode": ["gradients"],
    "accumulators": ["accumulators"],
    "buffers": ["gradients", "buffers", "accumulators"],
}
"""What is not the same when a part of the recipe is left out."""


def replays(ranks: Server, folder: Path, layout: str, plan: str, *more: str, **env: str) -> list[list[dict[str, Any]]]:
    """What came of the replays of a run, rank by rank."""
    chosen = LAYOUTS[layout].plus("--no-check-for-nan-in-loss-and-grad", *more)
    variables = {"END_STATE_DIR": str(folder), "REPLAYS": plan, **env}
    finished = ranks.run(chosen.nproc, SCRIPT, chosen.args, env=variables, cwd=folder)
    assert finished.code == 0, finished.out
    return [json.loads((folder / f"replay{rank}.json").read_text()) for rank in range(chosen.nproc)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in LAYOUTS]
)
def test_a_replay_is_exact_and_the_run_goes_on_as_if_there_had_been_none(
    ranks: Server, end_states: EndStates, tmp_path: Path, layout: str
) -> None:
    found = replays(ranks, tmp_path, layout, PLANS.get(layout, PLAIN))

    for rank, of_rank in enumerate(found):
        assert len(of_rank) == len(PLANS.get(layout, PLAIN).replace(";", ",").split(","))
        for one in of_rank:
            assert one["differs"] == DAMAGE[one["what"]], (rank, one)
            assert (one["why_not"], one["still_differs"], one["bad"]) == ("", [], None), (rank, one)
    stock = end_states(layout).stock.ranks
    for rank, plain in enumerate(stock):
        replayed = torch.load(tmp_path / f"rank{rank}.pt")["state"]
        assert differences(plain["state"], replayed) == [], f"rank {rank}"


def test_losses_are_equal_even_in_a_replay_without_gradients(ranks: Server, tmp_path: Path) -> None:
    [[one]] = replays(ranks, tmp_path, "D1", "2: grad_mode")
    assert (one["losses_equal"], one["differs"]) == (True, ["gradients"])
    assert one["tolerance"] == 1.0, "there are no gradients at all"


def test_a_consumer_that_changes_its_data_does_not_change_the_recording(ranks: Server, tmp_path: Path) -> None:
    [[one]] = replays(ranks, tmp_path, "D1", "2: plain", CONSUMER="mutating")
    assert (one["differs"], one["losses_equal"]) == ([], True)
    [[one]] = replays(ranks, tmp_path, "D1", "2: plain", CONSUMER="mutating", LEAVE_OUT_AT_FETCH="1")
    assert (one["differs"], one["losses_equal"]) == (["gradients"], False)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("layout", "spoiled", "bad"),
    [
        # Rank 5 is TP 1, stage 1, replica 0: its TP peer gets the bad gradient, and by p2p the stage before.
        ("A", "5,2,2", {0: 2, 1: 2, 4: 2, 5: 2}),
        # The last micro-batch is being reduced when its backward is over: the norms before the reduction tell.
        pytest.param("B", "3,2,3", {2: 3, 3: 3}, marks=pytest.mark.long),
        pytest.param("B", "3,2,1", {2: 1, 3: 1}, marks=pytest.mark.long),
    ],
)
def test_the_first_bad_micro_batch_is_found_on_every_rank_that_was_bad_before_the_reduction(
    ranks: Server, tmp_path: Path, layout: str, spoiled: str, bad: dict[int, int]
) -> None:
    found = replays(ranks, tmp_path, layout, "2: plain", "--train-iters", "2", SPOILED=spoiled)
    assert {rank: one["bad"] for rank, [one] in enumerate(found) if one["bad"] is not None} == bad
    assert [(one["differs"], one["still_differs"]) for [one] in found] == [([], [])] * len(found)
