"""The vote on one step, and what it means: nothing, a loss scaler at work, or an incident."""

from __future__ import annotations

from collections import Counter

from megatron_nanguard import incident
from megatron_nanguard.coordination.vote import vote
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.ward import Ward
from megatron_nanguard.incident import Alarm, Setting
from megatron_nanguard.incident.outcome import ExchangeOutcome
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer
from megatron_nanguard.patching import Shield
from megatron_nanguard.policy import deciding
from megatron_nanguard.policy.deciding import PASS
from megatron_nanguard.policy.scaler import COUNTED_SKIP, Judgement
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.sentinel import Flag, flag_tensor
from megatron_nanguard.sentinel.vote_flags import fault_flags


class Judge:
    """Judges the steps of one attempt.

    Args:
        counts: steps guarded, alarms, incidents, checks at a lower scale.
    """

    def __init__(self, attempt: GuardedRun, shield: Shield, counts: Counter[str]) -> None:
        self._attempt, self._shield, self._counts = attempt, shield, counts

    def vote(self, ward: Ward, optimizer: MegatronOptimizer, voters: Voters) -> Alarm:
        """What the ranks found, put together.

        Collective: all voters. Local work is shielded; the vote is not.
        """
        subject, flags = ward.subject, None
        with self._shield("flags"):
            ward.after_reduction()
            flags = flag_tensor(subject.suspicions(optimizer), len(voters.ranks), subject.torch_device)
        if flags is None:
            flags = fault_flags(subject.torch_device)
        elif self._shield.fault is not None:
            flags[Flag.OWN_FAULT] = 1
        alarm = Alarm(tuple(vote(flags, voters)), optimizer)
        self._counts["steps_guarded"] += 1
        return alarm

    def verdict(self, ward: Ward, alarm: Alarm, voters: Voters) -> PolicyOutcome:
        """What is done about it, the same on every rank.

        Collective: all voters, when it is an incident or may be one.
        """
        judgement = self._judgement(ward.subject, alarm)
        if judgement is Judgement.CLEAR:
            return PASS
        if judgement is Judgement.SKIP:
            return COUNTED_SKIP
        return self._incident(ward, alarm, voters, in_doubt=judgement is Judgement.CHECK)

    def _judgement(self, subject: GuardedOptimizer, alarm: Alarm) -> Judgement:
        """The same on every rank: from exchanged flags and counts of them."""
        overflow, loss = alarm.has(Flag.LOCAL) or alarm.has(Flag.REDUCED), alarm.has(Flag.LOSS)
        bad = overflow or loss or alarm.has(Flag.DEAD_STEP)
        self._counts["alarms"] += bad
        judgement = Judgement.INCIDENT if bad else Judgement.CLEAR
        if alarm.has(Flag.DYNAMIC_SCALE):
            minimal, raised = alarm.has(Flag.MINIMAL_SCALE), alarm.has(Flag.RAISED_SCALE)
            of_scaler = subject.tally.judge(overflow, loss, minimal, raised)
            judgement = judgement if alarm.has(Flag.DEAD_STEP) else of_scaler
        if judgement is Judgement.CHECK and alarm.has(Flag.OWN_FAULT):
            return Judgement.SKIP
        return judgement

    def _incident(self, ward: Ward, alarm: Alarm, voters: Voters, *, in_doubt: bool) -> PolicyOutcome:
        attempt, subject = self._attempt, ward.subject
        setting = Setting(
            voters=voters,
            run=attempt.directory,
            run_id=attempt.run_id,
            deadline=attempt.settings.deadline,
            policy_name=attempt.policy,
            shield=self._shield,
            watchdog=Watchdog(attempt.meeting.store("incident"), attempt.meeting.rank, len(voters.ranks)),
            exercise=ward.exercise,
            capture=attempt.settings.capture,
            counts=self._counts,
            health=attempt.health,
        )

        def policy(outcome: ExchangeOutcome) -> PolicyOutcome:
            return deciding.decide(attempt.policy, subject.step, subject.budget, has_bad_copy=outcome.has_bad_copy)

        return incident.handle(subject, alarm, setting, policy, in_doubt=in_doubt)
