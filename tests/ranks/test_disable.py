"""`disable()` leaves no trace, in the middle of a training that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.patch_points import POINTS
from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS

pytestmark = pytest.mark.ranks

UNDO = Path(__file__).with_name("undo.py")
FOREIGN = "megatron.core.optimizer.optimizer:ChainedOptimizer.get_grad_norm"
"""Where the script puts another wrapper on top of ours."""
OF_RELEASE_0_8 = {"megatron.core.distributed.param_and_grad_buffer:Bucket.start_grad_sync"}


@pytest.fixture(scope="module")
def found(ranks: Server, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank of one run found."""
    folder = tmp_path_factory.mktemp("undo")
    layout = LAYOUTS["D2"].plus("--nanguard")
    finished = ranks.run(layout.nproc, UNDO, layout.args, cwd=folder)
    assert finished.code == 0, finished.out
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(layout.nproc)]


def test_every_target_and_no_other_holder_is_changed_by_enable(found: list[dict[str, Any]]) -> None:
    targets = {target.path for point in POINTS for target in point.targets} - OF_RELEASE_0_8
    for at in found:
        assert targets <= set(at["patched"])
        assert set(at["patched"]) <= set(at["originals_held_before"])
        assert at["originals_held"] == [], "copies of a name that no patch point lists"


def test_disable_puts_the_very_objects_back(found: list[dict[str, Any]]) -> None:
    for at in found:
        assert at["differing"] == [FOREIGN]
        assert at["left_over"] == []
        assert at["threads"] == []


def test_a_wrapper_on_top_of_ours_stays_and_ours_passes_through(found: list[dict[str, Any]]) -> None:
    for at in found:
        assert at["kept"] == [FOREIGN]
        assert at["foreign_stands"]
        assert at["calls_of_foreign"] == 1, "the step after disable() goes through it"
        assert at["fired_at_the_end"] == at["fired"]


def test_the_guard_ran_before_and_the_host_s_own_check_after(found: list[dict[str, Any]]) -> None:
    for at in found:
        assert at["steps"] == [1, 2, 3]
        assert at["fired"]["megatron.core.optimizer.optimizer:ChainedOptimizer.prepare_grads"] == 2
        assert at["bucket_check"] == [False, False, True]


def test_a_config_in_use_can_be_copied(found: list[dict[str, Any]]) -> None:
    # A patched schedule and finalize_model_grads: functions are copied as themselves, proxies would raise.
    assert [at["copied"] for at in found] == [[True, True], [True, True]]
