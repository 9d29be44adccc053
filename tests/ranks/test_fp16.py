"""fp16 with a dynamic loss scale: overflow is part of the scaler's work until there is too much of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Finished, Server
from tests.ranks.layouts import FP16, LAYOUTS, Layout
from tests.ranks.planted import layout_a
from tests.ranks.planted.checks import check_incident
from tests.ranks.run_files import RunFiles
from tests.ranks.test_failures import DRILL, SMALL
from tests.ranks.test_failures import SCRIPT as MISBEHAVE

pytestmark = pytest.mark.ranks

OWN_FAULT = Path(__file__).with_name("own_fault.py")
LOG_LINE = re.compile(r"iteration +(\d+)/.*?loss scale: (\S+) .*?number of skipped iterations: +(\d+)")

# The scale is halved by every skip but the first (hysteresis 2); two applied steps in a row would double it.
SCALES = (
    *(65536, 32768, 16384),  # steps 1 to 3 skipped before any was applied: the search for a scale
    *(16384, 8192, 8192),  # step 5 skipped, the first in a row
    *(4096, 2048, 1024),  # steps 7 to 9 skipped, the ninth as the third in a row
    *(1024, 512, 512),  # step 11 skipped for its loss
)
SKIPPED = {1, 2, 3, 5, 7, 8, 9, 11}


def test_overflow_is_an_incident_at_the_nth_skip_in_a_row_and_a_bad_loss_at_once(ranks: Server, tmp_path: Path) -> None:
    gradient, loss = layout_a.WGRAD, layout_a.OUTPUT_LAYER
    drills = [gradient.drill.format(step=steps) for steps in ("1-3", "5", "7-9")] + [loss.drill.format(step=11)]
    layout = LAYOUTS["G"].plus(
        *("--train-iters", "12", "--nanguard", "--nanguard-dir", str(tmp_path), "--nanguard-on-nonfinite", "skip"),
        *("--nanguard-scaler-skips", "3", "--nanguard-replay", "off", f"--nanguard-drill={';'.join(drills)}"),
    )

    finished = ranks.run(8, pretrain_script(), layout.args, in_rank="megatron_nanguard:enable", cwd=tmp_path)

    assert finished.code == 0, finished.out
    logged = LOG_LINE.findall(finished.out)
    assert tuple(float(scale) for _, scale, _ in logged) == SCALES
    assert {int(step) for step, _, skips in logged if int(skips)} == SKIPPED
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000009", "step_00000011"]
    for step, case in ((9, gradient), (11, loss)):
        assert case.incident is not None
        check_incident(run, step, case.incident, layout)
    for status in run.statuses():
        assert (status["steps_guarded"], status["alarms"], status["incidents"]) == (12, len(SKIPPED), 2)


def test_overflow_at_the_smallest_scale_is_an_incident_at_once(ranks: Server, tmp_path: Path) -> None:
    drill = f"--nanguard-drill=nan@step=1,rank=0,phase=wgrad,param={layout_a.FC1_OF_2}"
    layout = LAYOUTS["D1"].plus(*FP16, "--initial-loss-scale", "1", "--min-loss-scale", "1", "--nanguard", drill)

    finished = ranks.run(
        *(1, pretrain_script(), (*layout.args, "--nanguard-dir", str(tmp_path))),
        in_rank="megatron_nanguard:enable",
        cwd=tmp_path,
    )

    assert finished.code == 65, finished.out
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000001"]
    assert run.merged(1)["loss_scale"] == 1.0


# With this factor the gradients of layout G leave fp16 at a loss scale of 256 and are far inside it at 2048 / 256.
LARGE = {"where": "large loss", "factor": 8192.0}
# Step 1 belongs to the search for a scale. Steps 2 to 4 are applied, which is a window: 2048. Steps 5 and 6 overflow
# there, and only the second brings the scale down (hysteresis 2). Step 7 overflows at 1024, at which three steps were
# applied: checked. Step 8 lies in the window of that check, step 10 behind it.
LARGE_STEPS = (1, 5, 6, 7, 8, 10)
SCALE_AFTER = (1024, 1024, 1024, 2048, 2048, 1024, 512, 256, 256, 128, 128)
CHECKED = (7, 10)


def steps_of_each_rank(ranks: Server, layout: Layout, folder: Path, in_rank: str | None) -> tuple[list[Any], list[str]]:
    """Per rank what each step left behind, and what the guard said."""
    folder.mkdir()
    environment = {"FAULT": json.dumps({**LARGE, "steps": LARGE_STEPS}), "STEPS_DIR": str(folder)}
    finished = ranks.run(layout.nproc, OWN_FAULT, layout.args, env=environment, in_rank=in_rank, cwd=folder)
    assert finished.code == 0, finished.out
    said = [
        line for rank in range(layout.nproc) for line in finished.lines(rank) if "a skip of the loss scaler" in line
    ]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(layout.nproc)], said


def test_an_overflow_is_checked_far_below_the_scale_and_training_goes_on_as_if_it_were_not(
    ranks: Server, tmp_path: Path
) -> None:
    layout = LAYOUTS["G"].plus(
        *("--initial-loss-scale", "1024", "--loss-scale-window", "3", "--hysteresis", "2", "--train-iters", "11")
    )
    watched = layout.plus("--nanguard", "--nanguard-dir", str(tmp_path))

    stock, _ = steps_of_each_rank(ranks, layout, tmp_path / "stock", None)
    guarded, said = steps_of_each_rank(ranks, watched, tmp_path / "guarded", "megatron_nanguard:enable")

    assert guarded == stock
    for own in guarded:
        assert tuple(step["scalers"][0]["scale"] for step in own) == SCALE_AFTER
        assert {number for number, step in enumerate(own, start=1) if step["norm"] is None} == set(LARGE_STEPS)
    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == []
    assert not (run.path / "incidents").exists()
    counted = [(status["alarms"], status["scale_checks"], status["incidents"]) for status in run.statuses()]
    assert counted == [(len(LARGE_STEPS), len(CHECKED), 0)] * 8
    assert said == [
        f"[nanguard] step {step}: overflow, finite at 1/256 of the loss scale: a skip of the loss scaler"
        for step in CHECKED
    ]


def misbehaving(ranks: Server, folder: Path, misbehaviour: str, at_fault: str) -> Finished:
    """A gradient of ranks 0 and 1 is NaN at step 2, at a scale that the first step was applied at."""
    half = replace(SMALL, args=tuple(word for word in SMALL.args if word != "--bf16"))
    layout = half.plus(*FP16, "--initial-loss-scale", "1024", "--nanguard", "--nanguard-on-nonfinite", "skip", *DRILL)
    env = {"MISBEHAVIOUR": misbehaviour, "AT_FAULT": at_fault}
    # The ranks are left to end by themselves: the launcher is not to do it for them.
    return ranks.run(4, MISBEHAVE, layout.args, env=env, cwd=folder, linger=30)


def test_where_one_rank_cannot_run_the_step_again_it_is_a_skip_of_the_loss_scaler(
    ranks: Server, tmp_path: Path
) -> None:
    # Rank 2 reads the data of its replica.
    finished = misbehaving(ranks, tmp_path, "take_data_that_cannot_be_copied", "2")

    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(tmp_path / "nanguard")
    assert run.incidents == []
    counted = [(status["alarms"], status["scale_checks"], status["incidents"]) for status in run.statuses()]
    assert counted == [(1, 0, 0)] * 4


def test_a_rank_out_of_memory_in_the_check_takes_all_along_and_the_evidence_stays(
    ranks: Server, tmp_path: Path
) -> None:
    finished = misbehaving(ranks, tmp_path, "run_out_of_memory_when_checked", "3")

    assert finished.codes == dict.fromkeys(range(4), 65), finished.out
    assert "the incident failed on rank 3 in stage 'check at a lower scale': planted by the test" in finished.out
    assert finished.seconds < 30
    guarded = RunFiles.only_one_of(tmp_path / "nanguard").postmortems(2)
    assert [own["phase"] for own in guarded.values()] == ["signal"] * 4
    assert [own["flags"]["local"] for own in guarded.values()] == [True, True, False, False]
