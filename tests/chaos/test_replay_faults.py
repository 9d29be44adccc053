"""A fault of ours beside the passes of a replay costs what it would have found, and not the guard or the policy."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.arbitration import suspects
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.incident import stages
from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.incident.replaying import replayer
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.replay.data_iterators import Recording
from megatron_nanguard.replay.in_place import DecisionPoint
from megatron_nanguard.sentinel.vote_flags import Flag
from megatron_nanguard.settings import Settings
from megatron_nanguard.tracing.tracer import Tracer
from tests.unit.capture.steps import guard_optimizer, run_step
from tests.unit.conftest import Log
from tests.unit.one_rank import ONES, trainer

pytestmark = pytest.mark.timeout(60)

numbers = itertools.count(900)
SITES: dict[str, tuple[Any, str, bool]] = {
    "": (Tracer, "summarize", True),
    "state": (DecisionPoint, "take", False),
    "data": (Recording, "changed_after_fetch", True),
    "tracer": (replayer, "name_modules", False),
    "trace": (Tracer, "summarize", False),
    "catching": (suspects, "suspect_events", True),
    "calls": (suspects, "caught_calls", True),
}
"""Where the fault is, and whether the origin is found all the same; the first is the twin."""


@pytest.mark.parametrize("site", SITES)
def test_a_fault_beside_a_replay_costs_its_result_alone(
    megatron: Any, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise LookupError("planted by the test")

    of, name, finds_origin = SITES[site]
    if site:
        monkeypatch.setattr(of, name, fail)
    run = GuardedRun(Settings(on=True, dir=str(tmp_path)), RunHandshake((0,), next(numbers)), Shield(), Counter(), [])
    run.run_id, run.policy = "run-1", "skip"
    run.start()
    made = trainer(ddp={"check_for_nan_in_grad": False})
    guarded = guard_optimizer(made, next(numbers))
    run_step(made, guarded, (ONES, ONES * math.nan))
    before = [param.main_grad.clone() for param in made.net.parameters()]
    voters = guarded.voting_ranks.voters()
    assert voters is not None
    votes = tuple(int(flag in (Flag.LOCAL, Flag.REDUCED)) for flag in Flag)

    decision = stages.handle(run, guarded, Alarm(votes, guarded.optimizer, voters))  # type: ignore[arg-type]

    assert decision.action == "skip"
    assert run.shield.fault is None
    assert len(run.failed_stages) == int(bool(site))
    (sentence,) = (message for message in log.messages if message.startswith("non-finite gradient or loss. "))
    assert ("It began on rank 0" in sentence) == finds_origin
    for kept, param in zip(before, made.net.parameters(), strict=True):
        assert kept.equal(param.main_grad) or kept.isnan().equal(param.main_grad.isnan())
