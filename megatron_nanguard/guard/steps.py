"""The moments of a training step, from the schedule's call to the decision, and what the guard does at each."""

from __future__ import annotations

from collections.abc import Callable

from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.guard.step_decisions import decide, vote_on_step
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.guarded_optimizers import GuardedOptimizers
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.megatron_api.bucket_state import is_dispatched
from megatron_nanguard.megatron_api.model_chunks import chunks_of
from megatron_nanguard.megatron_api.optimizers import is_stub
from megatron_nanguard.megatron_api.protocols import (
    AnyBucketGroup,
    GradNorm,
    MegatronOptimizer,
    Schedule,
    ScheduleArguments,
    StepResult,
)
from megatron_nanguard.policy import actions
from megatron_nanguard.policy.deciding import PASS
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.sentinel.vote_flags import Flag

MAX_UNSEEN = 8
"""Decisions in a row without a pass in between; a host that prepares its gradients twice a step stays far below."""


class Steps:
    """The steps of one guarded run; the patch points call its methods.

    Args:
        give_up: called on all ranks together when a fault of ours showed on one.
        leave: ends the process; called on all ranks together.
    """

    def __init__(
        self,
        run: GuardedRun,
        optimizers: GuardedOptimizers,
        *,
        give_up: Callable[[Voters], None],
        leave: Callable[[], None],
    ) -> None:
        self.optimizers = optimizers
        self._run, self._shield = run, run.shield
        self._give_up, self._leave = give_up, leave
        self._depth = 0
        self._num_unseen = 0

    def schedule_called(self, schedule: Schedule, kwargs: ScheduleArguments) -> ScheduleArguments:
        """Open a step, unless it is an evaluation. Returns the keyword arguments for the schedule."""
        if kwargs.get("forward_only", False):
            return kwargs
        with self._shield("step"):
            guarded = self.optimizers.training(chunks_of(kwargs["model"]))
            kwargs = guarded.step.open(schedule, kwargs)
            guarded.begin_passes()
        if self._shield.fault is not None:
            # The step may not have been opened here, and the other ranks vote on it.
            for guarded in self.optimizers:
                guarded.step.is_open = True
        return kwargs

    def gradients_ready(self, group: AnyBucketGroup, force_all_reduce: bool) -> None:
        """Look at a bucket group that is about to be reduced. May run on an autograd thread."""
        with self._shield("before the reduction"):
            for guarded in self.optimizers:
                if guarded.step.holds(group) and not is_dispatched(group):
                    guarded.before_reduction(group, force_all_reduce)

    def takes_over(self, check: object) -> bool:
        """Whether a check of the host's is one that the guard does instead."""
        with self._shield("host checks"):
            return host_program.is_nan_check(check)
        return False

    def norm_known(self, optimizer: MegatronOptimizer, norm: GradNorm) -> None:
        """Keep a gradient norm of the host for the next vote. The last one, of the outermost optimizer, is used."""
        with self._shield("norm"):
            guarded = self.optimizers.of_optimizer(optimizer)
            if guarded is not None and norm is not None:
                guarded.step.norms.append(norm)

    def step(self, step: Callable[[], StepResult], optimizer: MegatronOptimizer) -> StepResult:
        """Vote on a rank that has nothing to train: in some releases its step returns before ``prepare_grads``."""
        has_nothing = False
        with self._shield("stub"):
            has_nothing = not self._depth and is_stub(optimizer)
        if not has_nothing:
            return step()
        decision = self._decide(optimizer)
        # Where the host comes to prepare_grads all the same, that repeats the decision.
        result = step()
        return (False, None, None) if decision.action == "skip" else result

    def decide(self, prepare: Callable[[], bool], optimizer: MegatronOptimizer) -> bool:
        """Vote, then let the host prepare its gradients, or skip the step."""
        if self._depth:
            return prepare()
        self._depth += 1
        try:
            decision = self._decide(optimizer)
            return actions.skip(prepare, optimizer, self._shield) if decision.action == "skip" else prepare()
        finally:
            self._depth -= 1

    def _decide(self, optimizer: MegatronOptimizer) -> PolicyOutcome:
        """One vote, and an incident when it raises an alarm.

        Collective: all voters of the optimizer. Local work is shielded; the vote is not.
        """
        guarded = self.optimizers.open()
        with self._shield("lookup"):
            guarded = self.optimizers.of_optimizer(optimizer)
        if guarded is None or not guarded.step.is_open:
            self._count_unseen()
            return PASS if guarded is None else guarded.decision
        self._num_unseen = 0
        with self._shield("watch"):
            guarded.end_passes()
        voters = guarded.voting_ranks.voters()
        if voters is None:
            self._close(guarded)
            return PASS
        alarm = vote_on_step(self._run, guarded, optimizer, voters)
        guarded.decision = decide(self._run, guarded, alarm)
        if alarm.has(Flag.OWN_FAULT):
            # Only now: Megatron's own checks were off when this step's gradients went by.
            self._give_up(voters)
        self._close(guarded)
        with self._shield("drill"):
            guarded.drills.step_ends()
        if guarded.decision.action == "abort":
            self._leave()
        return guarded.decision

    def _close(self, guarded: GuardedOptimizer) -> None:
        """The step is decided; a fault here is reported with the vote on the next one."""
        with self._shield("end of the step"):
            guarded.step.close()

    def _count_unseen(self) -> None:
        """No pass since the last decision: the host asks twice about the same gradients, or hides its passes."""
        self._num_unseen += 1
        if self._num_unseen == MAX_UNSEEN:
            self._run.warn(
                "steps run unguarded: no call of the pipeline schedule is seen (a full-iteration CUDA graph?)"
            )
