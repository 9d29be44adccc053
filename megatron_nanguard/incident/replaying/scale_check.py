"""fp16: an overflow of gradients alone, at a scale that steps were applied at. The loss scaler's work, or a fault?

The step is run again far below the scale. If it is finite there, the scaler is at work and this is no incident.
"""

from __future__ import annotations

import logging

from megatron_nanguard.coordination.vote import exchange
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.errors import ReplayError
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.incident.replaying.passes import Passes, PassKind
from megatron_nanguard.incident.stage_faults import StageFaults
from megatron_nanguard.megatron_api import optimizers
from megatron_nanguard.postmortem.run_directory import rank_name
from megatron_nanguard.records.step.replay import Trial
from megatron_nanguard.replay.in_place import DecisionPoint

log = logging.getLogger("megatron_nanguard")


def check_scale(
    run: GuardedRun,
    guarded: GuardedOptimizer,
    alarm: Alarm,
    incident: str,
    watchdog: Watchdog,
    passes: Passes | None,
    faults: StageFaults,
) -> Trial:
    """Run the step at a lower scale; unless it is bad there too, take back what was written of the incident.

    Args:
        incident: its directory, relative to the run.
        passes: None where this rank cannot make the call again.
    Returns:
        The same on every rank; "bad" is an incident.
    Raises:
        ReplayError: something is not as it was, bit for bit.
    Collective: all voters.
    """
    PassKind.SCALE_CHECK.begin(watchdog)
    trial = _run_at_lower_scale(guarded, alarm, passes, faults)
    run.counts["scale_checks"] += trial != "not_tried"
    if trial != "bad":
        coordinates, step = guarded.coordinates, guarded.step.number
        run.directory.withdraw(incident, step, rank_name(coordinates, guarded.sizes))
        if trial == "finite" and coordinates.rank == alarm.voters.ranks[0]:
            log.info("step %d: overflow, finite at 1/256 of the loss scale: a skip of the loss scaler", step)
    return trial


def _run_at_lower_scale(guarded: GuardedOptimizer, alarm: Alarm, passes: Passes | None, faults: StageFaults) -> Trial:
    """Run the step at a lower scale if all ranks can; afterwards everything is as after the first pass."""
    point = None if passes is None else faults.attempt("replay", lambda: DecisionPoint.take(passes.call), None)
    # The gradients of the lower scale are others: without a copy the first ones would be lost.
    can_check = point is not None and point.gradients.place != "nowhere"
    row = (int(can_check), optimizers.scale_window(alarm.optimizer))
    rows = exchange(row, alarm.voters, guarded.torch_device)
    trial: Trial = "not_tried"
    if passes is not None and point is not None and all(can for can, _ in rows):
        seen = passes.run(PassKind.SCALE_CHECK, point)
        lost = point.put_back()
        if lost:
            raise ReplayError(f"after the check at a lower scale not as it was bit for bit: {', '.join(lost)}")
        trial = passes.share_trial(seen)
    guarded.tally.checked(max(window for _, window in rows), trial == "bad")
    return trial
