"""A checkpoint that is damaged on disk: the load is blamed, in the shard that has it, and no operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS
from tests.ranks.run_files import RunFiles

pytestmark = pytest.mark.ranks

# TP2: the file of rank 1 holds its half of every weight. The first step is that of the run that saves.
LAYOUT = LAYOUTS["D2"].plus(
    *("--tensor-model-parallel-size", "2", "--global-batch-size", "8", "--bf16"),
    *("--ckpt-format", "torch", "--override-opt_param-scheduler"),
)
FC2 = "decoder.layers.2.mlp.linear_fc2"
EMBEDDING = "embedding.word_embeddings"


@pytest.fixture(scope="module")
def saved(ranks: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    args = LAYOUT.plus("--train-iters", "1", "--save", str(folder), "--save-interval", "1").args
    finished = ranks.run(2, pretrain_script(), args, cwd=folder)
    assert finished.code == 0, finished.out
    return folder


def resumed(ranks: Server, saved: Path, folder: Path, damage: Callable[[dict[str, Any]], None], *more: str) -> RunFiles:
    """Two more steps from the checkpoint, with another file of rank 1."""
    path = saved / "iter_0000001" / "mp_rank_01" / "model_optim_rng.pt"
    sound = path.read_bytes()
    state = torch.load(path, weights_only=False)
    damage(state)
    torch.save(state, path)
    guarded = ("--nanguard", "--nanguard-dir", str(folder), "--nanguard-on-nonfinite", "skip")
    args = LAYOUT.plus("--train-iters", "3", "--load", str(saved), *guarded, *more).args
    finished = ranks.run(2, pretrain_script(), args, in_rank="megatron_nanguard:enable", cwd=folder)
    path.write_bytes(sound)
    assert finished.code == 0, finished.out
    return RunFiles.only_one_of(folder)


def nan_weight(state: dict[str, Any]) -> None:
    state["model"][f"{FC2}.weight"].view(-1)[9] = torch.nan


def negative_moment(state: dict[str, Any]) -> None:
    """Of the first weight, the word embeddings; its next update takes the square root."""
    state["optimizer"]["optimizer"]["state"][0]["exp_avg_sq"].view(-1)[3] = -1.0


def accused(run: RunFiles, step: int) -> tuple[Any, ...]:
    merged = run.merged(step)
    first = merged["origin"][0]
    assert {one["came_back"] for one in merged["replay"]["passes"]} == {"yes"}
    assert merged["causes"][0]["cause"] == "state_corruption"
    return tuple(first[key] for key in ("rank", "phase", "module", "operator"))


def test_a_nan_weight_is_found_in_the_shard_that_has_it(ranks: Server, saved: Path, tmp_path: Path) -> None:
    # As after a conversion: weights alone are loaded, and main parameters made from them.
    run = resumed(ranks, saved, tmp_path, nan_weight, "--no-load-optim", "--train-iters", "2")

    assert run.incidents == ["step_00000002"]
    assert accused(run, 2) == (1, "load", FC2, f"parameter {FC2}.weight")
    assert [(one["kind"], one["name"], one["pattern"], one["rank"]) for one in run.merged(2)["audit"]] == [
        ("weight", f"{FC2}.weight", "nan", 1),
        ("main_param", f"{FC2}.weight", "nan", 1),
    ]


def test_a_negative_second_moment_is_reported_with_the_weight_it_spoiled(
    ranks: Server, saved: Path, tmp_path: Path
) -> None:
    run = resumed(ranks, saved, tmp_path, negative_moment)

    assert run.incidents == ["step_00000003"], "the first step from the checkpoint was finite, and was applied"
    assert accused(run, 3) == (1, "load", EMBEDDING, f"parameter {EMBEDDING}.weight")
    merged = run.merged(3)
    assert [(one["kind"], one["name"], one["pattern"], one["rank"]) for one in merged["audit"]] == [
        ("weight", f"{EMBEDDING}.weight", "nan", 1),
        ("main_param", f"{EMBEDDING}.weight", "nan", 1),
        ("exp_avg_sq", f"{EMBEDDING}.weight", "negative", 1),
    ]
    assert merged["advice"] == ["bad_moments", "bad_weights"]


def test_a_sound_checkpoint_gives_nothing_to_report(ranks: Server, saved: Path, tmp_path: Path) -> None:
    assert resumed(ranks, saved, tmp_path, lambda state: None).incidents == []
