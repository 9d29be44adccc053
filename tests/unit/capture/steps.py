"""A step of one rank of real Megatron under guard, and its capture on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.arbitration.call_catcher import CaughtCall
from megatron_nanguard.capture.model_state import gradients_by_name
from megatron_nanguard.coordination.store import own_client
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.incident.capturing import Capturer
from megatron_nanguard.incident.collecting import Collector
from megatron_nanguard.incident.stage_faults import StageFaults
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.replay.digests import named_digests
from megatron_nanguard.settings import Settings
from tests.unit.one_rank import Trainer

TWO = (torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]]))
INCIDENT = "incidents/step_00000001"


def guard_optimizer(made: Trainer, number: int) -> GuardedOptimizer:
    """The trainer's optimizer under guard.

    Args:
        number: of the handshake; each needs its own.
    """
    guarded = GuardedOptimizer(
        made.optimizer, [made.ddp], RunHandshake((0,), number).voting_ranks(), Settings(on=True), Shield()
    )
    guarded.learn()
    return guarded


def run_step(made: Trainer, guarded: GuardedOptimizer, inputs: Sequence[Tensor] = TWO, **changes: Any) -> None:
    """One pass that the guard sees: recorded, with norms before the reduction."""
    from megatron.core.pipeline_parallel import schedules

    original = schedules.forward_backward_no_pipelining

    def recorded(**kwargs: Any) -> Any:
        return original(**guarded.step.open(original, kwargs))

    schedules.forward_backward_no_pipelining = recorded
    try:
        made.forward_backward(inputs, **changes)
    finally:
        schedules.forward_backward_no_pipelining = original
    for group in made.ddp.bucket_groups:
        guarded.step.before.look(group, False)


def capture(
    guarded: GuardedOptimizer,
    level: str,
    root: Path,
    *,
    calls: Sequence[CaughtCall] = (),
    why_no_replay: str = "",
    before_writing: Callable[[], None] = lambda: None,
    world_size: int = 1,
    run: RunDirectory | None = None,
    faults: StageFaults | None = None,
) -> Path:
    """Capture the step that the guard has seen; the directory of the incident.

    Args:
        world_size: ranks of the incident, by the watchdog.
        run: under the root; a fresh one if None.
    """
    run = run or RunDirectory(root, "run-1", lambda said: None)
    collector = Collector(
        guarded, guarded.optimizer, level, calls, named_digests(gradients_by_name(guarded.names)), why_no_replay
    )
    before_writing()
    watchdog = Watchdog(own_client(f"capture {root}"), 0, world_size, 30.0, 0.0, leave=lambda code: None)
    faults = StageFaults({}) if faults is None else faults
    Capturer(Voters((0,), None), run, INCIDENT, watchdog, faults).capture(collector)
    incident = run.path / INCIDENT
    if incident.is_dir():
        (incident / "incident.json").write_text("{}")
    return incident
