"""A step of one rank of real Megatron under guard, and its capture on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.arbitration.call_catcher import CaughtCall
from megatron_nanguard.coordination.store import own_client
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guarded_run import RunHandshake
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.capturing import Capturer
from megatron_nanguard.incident.collecting import Collector, first_gradients
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.settings import Settings
from tests.unit.one_rank import Trainer

TWO = (torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]]))
INCIDENT = "incidents/step_00000001"


def guarded(made: Trainer, number: int) -> GuardedOptimizer:
    """The trainer's optimizer under guard.

    Args:
        number: of the meeting; each needs its own.
    """
    subject = GuardedOptimizer(made.optimizer, [made.ddp], RunHandshake((0,), number).electorate(), Settings(on=True))
    subject.learn()
    return subject


def run_step(made: Trainer, subject: GuardedOptimizer, inputs: Sequence[Tensor] = TWO, **changes: Any) -> None:
    """One pass that the subject sees: recorded, with norms before the reduction."""
    from megatron.core.pipeline_parallel import schedules

    original = schedules.forward_backward_no_pipelining

    def recorded(**kwargs: Any) -> Any:
        return original(**subject.open(original, kwargs))

    schedules.forward_backward_no_pipelining = recorded
    try:
        made.forward_backward(inputs, **changes)
    finally:
        schedules.forward_backward_no_pipelining = original
    for group in made.ddp.bucket_groups:
        subject.before.look(group, False)


def capture(
    subject: GuardedOptimizer,
    level: str,
    root: Path,
    *,
    calls: Sequence[CaughtCall] = (),
    why_no_replay: str = "",
    before_writing: Callable[[], None] = lambda: None,
    world_size: int = 1,
    run: RunDirectory | None = None,
) -> Path:
    """Capture the step that the subject has seen; the directory of the incident.

    Args:
        world_size: ranks of the incident, by the watchdog.
        run: under the root; a fresh one if None.
    """
    run = run or RunDirectory(root, "run-1", lambda said: None)
    collector = Collector(subject, subject.optimizer, level, calls, first_gradients(subject), why_no_replay)
    before_writing()
    watchdog = Watchdog(own_client(f"capture {root}"), 0, world_size, lambda code: None)
    Capturer(Voters((0,), None), run, INCIDENT, watchdog, 30.0, subject.torch_device).capture(collector)
    incident = run.path / INCIDENT
    if incident.is_dir():
        (incident / "incident.json").write_text("{}")
    return incident
