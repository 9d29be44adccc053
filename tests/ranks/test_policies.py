"""What is done about an incident: abort, skip, continue; and drills that were asked for in vain."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Finished, Server
from tests.ranks.layouts import FP16, LAYOUTS, Layout
from tests.ranks.run_files import RunFiles

pytestmark = pytest.mark.ranks

OWN_FAULT = Path(__file__).with_name("own_fault.py")
GUARD = "megatron_nanguard:enable"
ONE_RANK = LAYOUTS["D1"]
TWO_SHARDS = Layout(2, (*ONE_RANK.args, "--tensor-model-parallel-size", "2"), tp=2)
FC1_OF_2 = "decoder.layers.2.mlp.linear_fc1.weight"
NORM_OF_0 = "decoder.layers.0.input_layernorm.weight"


def guarded(layout: Layout, folder: Path, policy: str, *more: str) -> Layout:
    return layout.plus("--nanguard", "--nanguard-dir", str(folder), "--nanguard-on-nonfinite", policy, *more)


def drilled(ranks: Server, layout: Layout, folder: Path, policy: str, *more: str) -> Finished:
    chosen = guarded(layout, folder, policy, *more)
    return ranks.run(chosen.nproc, pretrain_script(), chosen.args, in_rank=GUARD, cwd=folder)


def faulty(ranks: Server, layout: Layout, folder: Path, fault: dict[str, Any], in_rank: str | None) -> list[Any]:
    """Per rank, what each step left behind; the layout's run with a fault of the script's own."""
    folder.mkdir(exist_ok=True)
    environment = {"FAULT": json.dumps(fault), "STEPS_DIR": str(folder)}
    finished = ranks.run(layout.nproc, OWN_FAULT, layout.args, env=environment, in_rank=in_rank, cwd=folder)
    assert finished.code == 0, finished.out
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(layout.nproc)]


def test_policy_abort_ends_all_ranks_with_65_and_one_sentence(ranks: Server, tmp_path: Path) -> None:
    drill = "nan@step=2,rank=5,mb=2,phase=backward,module=decoder.layers.3.mlp"

    finished = drilled(ranks, LAYOUTS["A"], tmp_path, "abort", f"--nanguard-drill={drill}")

    assert finished.code == 65, finished.out
    assert finished.codes == dict.fromkeys(range(8), 65)
    (said,) = (line for line in finished.out.splitlines() if "non-finite gradient" in line)
    assert said.startswith("[rank0]") and "ranks 0, 1, 4, 5" in said
    assert "Traceback" not in finished.out and "iteration        2/" not in finished.out
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000002"]
    policy = run.merged(2)["policy"]
    assert (policy["name"], policy["action"], policy["exit_code"]) == ("abort", "abort", 65)
    assert [own["phase"] for own in run.postmortems(2).values()] == ["complete"] * 8
    assert [status["incidents"] for status in run.statuses()] == [1] * 8
    if kept := os.environ.get("NANGUARD_TEST_INCIDENT"):
        shutil.copytree(run.path, kept, dirs_exist_ok=True)


def test_too_many_skips_of_a_drill_turn_into_abort_and_its_checkpoints_are_marked(
    ranks: Server, tmp_path: Path
) -> None:
    drill = f"nan@step=*,rank=0,phase=wgrad,param={FC1_OF_2}"
    saving = ONE_RANK.plus("--save", str(tmp_path / "saved"), "--save-interval", "100")

    finished = drilled(ranks, saving, tmp_path, "skip", f"--nanguard-drill={drill}", "--nanguard-max-skips", "1/2")

    assert finished.code == 65, finished.out
    assert drill in (tmp_path / "saved" / "NANGUARD_DRILL.txt").read_text(), "checkpoints of a drill are marked"
    run = RunFiles.only_one_of(tmp_path)
    assert [run.merged(step)["policy"]["action"] for step in (1, 2)] == ["skip", "abort"]
    assert "--nanguard-max-skips" in run.merged(2)["policy"]["words"]


def test_a_nan_in_one_rank_s_reduced_buffer_skips_the_step_on_all(ranks: Server, tmp_path: Path) -> None:
    layout = guarded(LAYOUTS["D2"].plus("--bf16"), tmp_path, "skip")
    fault = {"step": 2, "rank": 1, "where": "reduced", "param": FC1_OF_2}

    told = faulty(ranks, layout, tmp_path, fault, GUARD)

    assert told[0] == told[1], "replicas stay equal"
    first, skipped, third = told[0]
    assert (skipped["weights"], skipped["samples"]) == (first["weights"], 16), "neither weights nor schedule moved"
    assert third["weights"] != first["weights"] and third["samples"] == 32
    merged = RunFiles.only_one_of(tmp_path).merged(2)
    assert merged["kind"] == "gradient_after_reduction"
    assert merged["ranks"] == {"bad_before": [], "bad_after_only": [1], "clean": [0]}


def test_a_nan_that_megatron_s_norm_does_not_see_is_found_and_policy_continue_goes_on(
    ranks: Server, tmp_path: Path
) -> None:
    # A layer norm is replicated over TP: only TP rank 0's copy counts in the norm, the NaN is in TP rank 1's.
    layout = TWO_SHARDS.plus("--train-iters", "2")
    fault = {"step": 2, "rank": 1, "where": "gradient", "param": NORM_OF_0}

    stock = faulty(ranks, layout.plus("--no-check-for-nan-in-loss-and-grad"), tmp_path / "stock", fault, None)
    told = faulty(ranks, guarded(layout, tmp_path, "continue"), tmp_path / "guarded", fault, GUARD)

    assert [math.isfinite(step["norm"]) for rank in stock for step in rank] == [True] * 4
    assert told == stock, "the step was applied all the same"
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000002"]
    merged = run.merged(2)
    assert merged["ranks"] == {"bad_before": [1], "bad_after_only": [], "clean": [0]}
    assert {parameter["name"] for parameter in merged["parameters"]} == {NORM_OF_0}
    assert merged["policy"]["action"] == "continue"


@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_a_step_skipped_by_the_guard_is_the_step_that_megatron_skips(ranks: Server, tmp_path: Path, where: str) -> None:
    # Of a NaN in a gradient the loss scaler knows itself; of a loss with finite gradients only the guard does.
    layout = TWO_SHARDS.plus(*FP16, "--train-iters", "4")
    fault = {"step": 2, "rank": 1, "where": "gradient", "param": FC1_OF_2}

    stock = faulty(ranks, layout, tmp_path / "stock", fault, None)
    skipping = guarded(layout, tmp_path, "skip", "--nanguard-scaler-skips", "1")
    told = faulty(ranks, skipping, tmp_path / "guarded", {**fault, "where": where}, GUARD)

    assert told == stock
    assert stock[0][0]["weights"] == stock[0][1]["weights"] != stock[0][2]["weights"]
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000002"]
    assert run.merged(2)["kind"] == {"gradient": "gradient_before_reduction", "loss": "loss"}[where]
    assert run.merged(2)["ranks"] == {"bad_before": [1], "bad_after_only": [], "clean": [0]}


def test_a_drill_that_never_fired_is_an_error_at_exit(ranks: Server, tmp_path: Path) -> None:
    drill = f"nan@step=99,rank=0,phase=wgrad,param={FC1_OF_2}"

    finished = drilled(ranks, ONE_RANK, tmp_path, "abort", f"--nanguard-drill={drill}")

    assert finished.code == 66, finished.out
    assert "never fired" in finished.out and drill in finished.out
    assert RunFiles.only_one_of(tmp_path).incidents == []


def test_a_drill_on_an_unknown_module_names_the_nearest(ranks: Server, tmp_path: Path) -> None:
    drill = "--nanguard-drill=nan@step=2,rank=0,mb=0,phase=forward,module=decoder.layers.3.mpl"

    finished = drilled(ranks, ONE_RANK, tmp_path, "abort", drill)

    assert finished.code == 2, finished.out
    said = next(line for line in finished.out.splitlines() if "decoder.layers.3.mpl'" in line)
    assert "decoder.layers.3.mlp" in said
    assert "Traceback" not in finished.out


def test_a_drill_refuses_policy_continue(ranks: Server, tmp_path: Path) -> None:
    drill = f"--nanguard-drill=nan@step=2,rank=0,phase=wgrad,param={FC1_OF_2}"

    finished = drilled(ranks, ONE_RANK, tmp_path, "continue", drill)

    assert finished.code == 2, finished.out
    assert "--nanguard-drill with --nanguard-on-nonfinite continue" in finished.out
    assert not (tmp_path / "runs").exists()
