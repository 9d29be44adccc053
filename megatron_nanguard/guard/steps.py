"""From the schedule's call to the decision: what the host does in a step, and what the guard does then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.guard.step_decisions import Judge
from megatron_nanguard.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.guarded_optimizers import GuardedOptimizers
from megatron_nanguard.megatron_api import optimizers
from megatron_nanguard.megatron_api.bucket_state import is_dispatched
from megatron_nanguard.megatron_api.model_chunks import chunks_of
from megatron_nanguard.megatron_api.protocols import AnyBucketGroup, MegatronOptimizer
from megatron_nanguard.patching import Shield
from megatron_nanguard.policy import actions
from megatron_nanguard.policy.deciding import PASS
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.sentinel import Flag

MAX_UNSEEN = 8
"""Decisions in a row without a pass in between; a host that prepares its gradients twice a step stays far below."""


class Steps:
    """The steps of one attempt.

    Args:
        counts: steps guarded, alarms, incidents, checks at a lower scale.
        give_up: called on all ranks together when a fault of ours showed on one.
        leave: ends the process, alike on all ranks.
    """

    def __init__(
        self,
        attempt: GuardedRun,
        wards: GuardedOptimizers,
        shield: Shield,
        counts: Counter[str],
        *,
        give_up: Callable[[Voters], None],
        leave: Callable[[], None],
    ) -> None:
        self._attempt, self._wards, self._shield = attempt, wards, shield
        self._judge = Judge(attempt, shield, counts)
        self._give_up, self._leave = give_up, leave
        self._depth = 0
        self._unseen = 0

    def schedule_called(self, schedule: Callable[..., Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """A forward-backward pass begins; the keyword arguments to go on with."""
        with self._shield("step"):
            ward = self._wards.training(chunks_of(kwargs["model"]))
            kwargs = ward.subject.open(schedule, kwargs)
            ward.step_begins()
        if self._shield.fault is not None:
            # The step may not have been opened here, and the others vote on it.
            for ward in self._wards:
                ward.subject.is_open = True
        return kwargs

    def gradients_ready(self, group: AnyBucketGroup, force_all_reduce: bool) -> None:
        """A bucket group is about to be reduced. May run on an autograd thread."""
        with self._shield("before the reduction"):
            for ward in self._wards:
                if ward.subject.holds(group) and not is_dispatched(group):
                    ward.before_reduction(group, force_all_reduce)

    def norm_known(self, optimizer: MegatronOptimizer, norm: Any) -> None:
        """The host has computed a gradient norm; the outermost optimizer's comes last and stands."""
        with self._shield("norm"):
            ward = self._wards.of_optimizer(optimizer)
            if ward is not None and norm is not None:
                ward.subject.norms.append(norm)

    def step(self, step: Callable[[], Any], optimizer: MegatronOptimizer) -> Any:
        """Vote for a rank that has nothing to train, and in some releases returns before ``prepare_grads``."""
        if self._depth or not optimizers.is_stub(optimizer):
            return step()
        verdict = self._decide(optimizer)
        # Where the host comes to prepare_grads all the same, that repeats the decision.
        result = step()
        return (False, None, None) if verdict.action == "skip" else result

    def decide(self, prepare: Callable[[], bool], optimizer: MegatronOptimizer) -> bool:
        """The decision point: vote, then let the host prepare its gradients, or veto."""
        if self._depth:
            return prepare()
        self._depth += 1
        try:
            verdict = self._decide(optimizer)
            return actions.skip(prepare, optimizer) if verdict.action == "skip" else prepare()
        finally:
            self._depth -= 1

    def _decide(self, optimizer: MegatronOptimizer) -> PolicyOutcome:
        """One vote, and an incident when it raises an alarm.

        Collective: all voters of the optimizer. Local work is shielded; the vote is not.
        """
        ward = self._wards.of_optimizer(optimizer)
        if ward is None or not ward.subject.is_open:
            self._count_unseen()
            return PASS if ward is None else ward.verdict
        self._unseen = 0
        with self._shield("watch"):
            ward.passes_end()
        voters = ward.subject.electorate.voters()
        if voters is None:
            ward.subject.close()
            return PASS
        alarm = self._judge.vote(ward, optimizer, voters)
        ward.verdict = self._judge.verdict(ward, alarm, voters)
        if alarm.has(Flag.OWN_FAULT):
            # Only now: Megatron's own checks were off when this step's gradients went by.
            self._give_up(voters)
        ward.subject.close()
        with self._shield("drill"):
            ward.step_ends()
        if ward.verdict.action == "abort":
            self._leave()
        return ward.verdict

    def _count_unseen(self) -> None:
        """No pass since the last decision: the host asks twice about the same gradients, or hides its passes."""
        self._unseen += 1
        if self._unseen == MAX_UNSEEN:
            self._attempt.warn(
                "steps run unguarded: no call of the pipeline schedule is seen (a full-iteration CUDA graph?)"
            )
