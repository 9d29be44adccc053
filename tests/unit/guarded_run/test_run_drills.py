"""Drills in a run: the checkpoints' mark, the drill that nobody has, the ones that never fired."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch.distributed as dist

from megatron_nanguard.errors import DrillError
from megatron_nanguard.guarded_run.run_drills import RunDrills
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.parameters.parameter_map import ParameterMap
from tests.unit.conftest import Log
from tests.unit.drill.models import ONE_RANK, Chain, train

SPEC = "nan@step=2,rank=0,phase=forward,module=first"
NOWHERE = "nan@step=2,rank=*,phase=forward,module=third"


def attach(drills: RunDrills, model: Chain, counters: dist.Store | None = None) -> None:
    drills.attach([model], ParameterMap([model], ONE_RANK), counters or dist.HashStore())


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DrillError, match="rank 8 does not exist"):
        RunDrills("nan@step=1,rank=8,phase=forward,module=first", 0, 8)


def test_checkpoints_of_a_drill_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_program, "arguments", lambda: Namespace(save=str(tmp_path / "save")))
    RunDrills(SPEC, 0, 1).mark_checkpoints()
    assert (tmp_path / "save/NANGUARD_DRILL.txt").read_text() == (
        f"The checkpoints in this directory come from a drill: faults were planted on purpose.\n{SPEC}\n"
    )


def test_a_mark_that_cannot_be_written_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    (tmp_path / "save").write_text("")
    monkeypatch.setattr(host_program, "arguments", lambda: Namespace(save=str(tmp_path / "save")))
    RunDrills(SPEC, 0, 1).mark_checkpoints()
    assert [text.partition(":")[0] for text in log.messages] == [
        f"cannot mark the checkpoints in {tmp_path / 'save'} as a drill's"
    ]


def test_without_checkpoints_nothing_is_marked(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setattr(host_program, "arguments", lambda: Namespace(save=None))
    RunDrills(SPEC, 0, 1).mark_checkpoints()
    assert log.messages == []


def test_a_drill_that_has_not_gone_off_is_unfired_with_the_reason() -> None:
    drills, model = RunDrills(SPEC, 0, 1), Chain()
    attach(drills, model)
    train(drills.planted[0], model, 1)
    assert drills.unfired() == [f"{SPEC!r} never fired (its step or micro-batch never came)"]
    train(drills.planted[0], model, 2)
    assert drills.unfired() == []


def test_the_last_rank_without_the_target_reports_that_no_rank_has_it() -> None:
    counters = dist.HashStore()
    attach(RunDrills(NOWHERE, 0, 2), Chain(), counters)
    with pytest.raises(DrillError, match="no rank has its target; names are global"):
        attach(RunDrills(NOWHERE, 1, 2), Chain(), counters)
