"""A healthy run is bit-identical to one without the plugin, in every layout."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.ranks.conftest import EndStates, Run
from tests.ranks.layouts import LAYOUTS

pytestmark = pytest.mark.ranks

ALWAYS = ("A", "C", "D1")
STEPS = 3
OF_THE_LAUNCHER = ("megatron_nanguard", "megatron_nanguard.version", "megatron_nanguard.cpurun")
"""All that a stock run may import of ours."""


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in LAYOUTS]
)
def test_three_healthy_steps_end_in_the_very_state_of_stock_megatron(end_states: EndStates, layout: str) -> None:
    stock, guarded = end_states(layout)

    assert_nothing_of_ours_in(stock)
    assert_guarded(guarded, LAYOUTS[layout].nproc)
    for rank, (plain, watched) in enumerate(zip(stock.ranks, guarded.ranks, strict=True)):
        assert differences(plain["state"], watched["state"]) == [], f"rank {rank}"


def assert_nothing_of_ours_in(run: Run) -> None:
    for ended in run.ranks:
        known = [name for name in ended["modules"] if name.startswith(OF_THE_LAUNCHER[-1]) or name in OF_THE_LAUNCHER]
        assert ended["modules"] == known


def assert_guarded(run: Run, nproc: int) -> None:
    """Every step was voted on, on every rank, and nothing was found."""
    [attempt] = (run.folder / "nanguard" / "runs").iterdir()
    statuses = [json.loads(path.read_text()) for path in sorted((attempt / "status").iterdir())]
    assert [(status["rank"], status["steps_guarded"], status["alarms"]) for status in statuses] == [
        (rank, STEPS, 0) for rank in range(nproc)
    ]
    assert not (attempt / "incidents").exists()


def differences(plain: dict[str, Any], watched: dict[str, Any]) -> list[str]:
    """Names whose values are not bit for bit the same."""
    unequal = {name for name in plain.keys() & watched.keys() if not is_same(plain[name], watched[name])}
    return sorted(unequal | (plain.keys() ^ watched.keys()))


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


def test_the_state_holds_what_a_run_could_differ_in(end_states: EndStates) -> None:
    # A rank of layout C's only stage sees every loss, and 8 experts on EP2 leave it 4 with two matrices per layer.
    state = end_states("C").stock.ranks[0]["state"]

    assert sum(name.startswith("loss ") for name in state) == STEPS * 4
    assert sum(".experts." in name for name in state) == 4 * 4 * 2
    kinds = ("main param", "exp_avg", "exp_avg_sq")
    counts = [sum(name.startswith("optimizer") and name.endswith(kind) for name in state) for kind in kinds]
    assert counts[0] > 0
    assert len(set(counts)) == 1, "moments belong to main parameters"
    assert {"random device", "random python", "random numpy", "random tracker expert-parallel-rng"} <= state.keys()
    assert not is_same(state["loss 0"], state["loss 4"])


@pytest.mark.long
def test_router_buffers_and_loss_scale_are_in_the_state(end_states: EndStates) -> None:
    router, scaler = (end_states(layout).stock.ranks[0]["state"] for layout in ("F", "G"))

    # Two of four layers on each of two stages.
    assert sum(name.endswith("router.expert_bias") for name in router) == 2
    assert {"scaler 0 scale", "scaler 0 growth_tracker", "scaler 0 hysteresis_tracker"} <= scaler.keys()
