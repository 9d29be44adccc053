"""fp16: an overflow of gradients alone, at a scale that steps were applied at. The loss scaler's work, or a fault?

The same step once more, far below the scale: finite there, and the scaler is at work.
"""

from __future__ import annotations

import logging

from megatron_nanguard.coordination.vote import exchange
from megatron_nanguard.errors import ReplayError
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.passes import PLAIN_STEPS, Passes
from megatron_nanguard.incident.setting import Setting
from megatron_nanguard.incident.signal import Alarm
from megatron_nanguard.megatron_api import optimizers
from megatron_nanguard.postmortem.run_directory import rank_name
from megatron_nanguard.records.replay import Trial
from megatron_nanguard.replay import DecisionPoint
from megatron_nanguard.replay.changed_conditions import LOWER_SCALE, lower_scale

log = logging.getLogger("megatron_nanguard")


def check_scale(
    subject: GuardedOptimizer, alarm: Alarm, setting: Setting, incident: str, passes: Passes | None
) -> Trial:
    """Bad far below the loss scale too, or the signal is taken back: nothing stays but a count and a line of the log.

    Args:
        incident: its directory, relative to the run.
        passes: None where this rank cannot make the call again.
    Returns:
        The same on every rank; "bad" is an incident.
    Raises:
        ReplayError: something is not as it was, bit for bit.
    Collective: all voters.
    """
    setting.watchdog.stage("check at a lower scale", setting.deadline + PLAIN_STEPS * subject.median_seconds)
    trial = _run_lower(subject, alarm, setting, passes)
    setting.counts["scale_checks"] += trial != "not_tried"
    if trial != "bad":
        place = subject.coordinates
        setting.run.withdraw(incident, subject.step, rank_name(place, subject.sizes))
        if trial == "finite" and place.rank == setting.voters.ranks[0]:
            log.info("step %d: overflow, finite at 1/256 of the loss scale: a skip of the loss scaler", subject.step)
    return trial


def _run_lower(subject: GuardedOptimizer, alarm: Alarm, setting: Setting, passes: Passes | None) -> Trial:
    """Run the step again at a lower scale if all ranks can; afterwards everything is as after the first pass."""
    point = None if passes is None else DecisionPoint.take(passes.call)
    # The gradients of the lower scale are others: without a copy the first ones would be lost.
    can_check = point is not None and point.gradients.place != "nowhere"
    row = (int(can_check), optimizers.scale_window(alarm.optimizer))
    rows = exchange(row, setting.voters, subject.torch_device)
    trial: Trial = "not_tried"
    if passes is not None and point is not None and all(can for can, _ in rows):
        seen = passes.run(point, LOWER_SCALE, during=lower_scale(subject.chunks))
        lost = point.put_back()
        if lost:
            raise ReplayError(f"after the check at a lower scale not as it was bit for bit: {', '.join(lost)}")
        trial = passes.tried(seen)
    subject.tally.checked(max(window for _, window in rows), trial == "bad")
    return trial
