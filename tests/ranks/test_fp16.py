"""fp16 with a dynamic loss scale: overflow is part of the scaler's work until there is too much of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megatron_nanguard.cpurun import pretrain_script
from megatron_nanguard.cpurun.server import Server
from tests.ranks.layouts import FP16, LAYOUTS
from tests.ranks.planted import layout_a
from tests.ranks.planted.checks import check_incident
from tests.ranks.run_files import RunFiles

pytestmark = pytest.mark.ranks

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
