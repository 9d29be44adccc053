"""The vote on one step, and the decision that follows: apply it, count a skip of the loss scaler, or an incident."""

from __future__ import annotations

from megatron_nanguard.coordination.vote import vote
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.incident.stages import handle
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer
from megatron_nanguard.policy.deciding import PASS
from megatron_nanguard.policy.scaler import COUNTED_SKIP, Judgement
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.sentinel.vote_flags import Flag, fault_flags, flag_tensor


def vote_on_step(run: GuardedRun, guarded: GuardedOptimizer, optimizer: MegatronOptimizer, voters: Voters) -> Alarm:
    """Put together what the ranks found.

    Args:
        optimizer: the outermost optimizer that asks for the decision.
    Collective: all voters. Local work is shielded; the vote is not.
    """
    flags = None
    with run.shield("flags"):
        guarded.after_reduction()
        flags = flag_tensor(guarded.step.flag_inputs(optimizer), len(voters.ranks), guarded.torch_device)
    if flags is None:
        flags = fault_flags(guarded.torch_device)
    elif run.shield.fault is not None:
        flags[Flag.OWN_FAULT] = 1
    alarm = Alarm(tuple(vote(flags, voters)), optimizer, voters)
    run.counts["steps_guarded"] += 1
    return alarm


def decide(run: GuardedRun, guarded: GuardedOptimizer, alarm: Alarm) -> PolicyOutcome:
    """What is done about the step, the same on every rank.

    Collective: all voters, when it is an incident or may be one.
    """
    judgement = _judgement(run, guarded, alarm)
    if judgement is Judgement.CLEAR:
        return PASS
    if judgement is Judgement.SKIP:
        return COUNTED_SKIP
    return handle(run, guarded, alarm, in_doubt=judgement is Judgement.CHECK)


def _judgement(run: GuardedRun, guarded: GuardedOptimizer, alarm: Alarm) -> Judgement:
    """What the flags mean. The same on every rank: from exchanged flags and counts of them."""
    overflow, loss = alarm.has(Flag.LOCAL) or alarm.has(Flag.REDUCED), alarm.has(Flag.LOSS)
    bad = overflow or loss or alarm.has(Flag.DEAD_STEP)
    run.counts["alarms"] += bad
    judgement = Judgement.INCIDENT if bad else Judgement.CLEAR
    if alarm.has(Flag.DYNAMIC_SCALE):
        minimal, raised = alarm.has(Flag.MINIMAL_SCALE), alarm.has(Flag.RAISED_SCALE)
        # Of a healthy step the tally says the same as the flags do.
        with run.shield("tally"):
            of_scaler = guarded.tally.judge(overflow, loss, minimal, raised)
            judgement = judgement if alarm.has(Flag.DEAD_STEP) else of_scaler
    if judgement is Judgement.CHECK and alarm.has(Flag.OWN_FAULT):
        return Judgement.SKIP
    return judgement
