"""First of all: this rank's post-mortem on disk, before any further collective."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.rank_evidence import RankEvidence, host_norm
from megatron_nanguard.megatron_api import host_program, optimizers
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Flags, Kind, Postmortem, RngDigests, ScalerState
from megatron_nanguard.sentinel import Flag

NO_RNG = RngDigests("", "", "", "", {})


@dataclass(frozen=True)
class Alarm:
    """What the vote said.

    Attributes:
        votes: the maximum of every flag over all ranks, in the order of ``Flag``.
        optimizer: the outermost optimizer that asked.
    """

    votes: tuple[int, ...]
    optimizer: MegatronOptimizer

    def has(self, flag: Flag) -> bool:
        """Whether some rank raised this flag."""
        return bool(self.votes[flag])


def write_down(
    subject: GuardedOptimizer, alarm: Alarm, evidence: RankEvidence, run_id: str, policy: str, fault: str | None
) -> Postmortem:
    """This rank's post-mortem as far as it is known without the others.

    Sync: a few host reads.
    """
    norm = host_norm(subject.norms[-1]) if alarm.has(Flag.DEAD_STEP) and subject.norms else None
    notes = [phrase("a fault of the guard's own on this rank: {fault}", fault=fault)] if fault else []
    if alarm.has(Flag.DEAD_STEP):
        notes.append(phrase("the step before this one was applied although its gradient norm was not finite"))
    if not subject.before.per_parameter:
        told = phrase(
            "one norm per bucket was taken (--nanguard-norms bucket): parameters are named only where counted"
        )
        notes.append(told)
    return Postmortem(
        run_id=run_id,
        step=subject.step,
        kind=kind_alone(evidence),
        phase="signal",
        coordinates=subject.coordinates,
        sizes=subject.sizes,
        host=socket.gethostname(),
        pid=os.getpid(),
        device=subject.device.facts(),
        microbatches=evidence.microbatches,
        local=evidence.local,
        reduced=evidence.reduced,
        grad_norm=norm,
        clip_coefficient=subject.clip_coefficient(norm),
        loss_scale=optimizers.loss_scale(alarm.optimizer),
        scaler=_scaler(subject, alarm),
        rng=subject.rng.digests() if subject.rng else NO_RNG,
        flags=Flags(
            local=evidence.bad_before,
            reduced=evidence.bad_after,
            loss=evidence.bad_loss,
            own_fault=fault is not None,
            dead_step=alarm.has(Flag.DEAD_STEP),
        ),
        ranks=None,
        groups=(),
        policy=policy,
        versions=host_program.versions(),
        notes=tuple(notes),
    )


def _scaler(subject: GuardedOptimizer, alarm: Alarm) -> ScalerState | None:
    """What the loss scaler was about; the step itself is counted already."""
    if not optimizers.is_dynamic(alarm.optimizer):
        return None
    in_search, skips = subject.tally.before
    return ScalerState(
        in_search=in_search,
        just_raised=not in_search and alarm.has(Flag.RAISED_SCALE),
        skips_in_a_row=skips,
    )


def kind_alone(evidence: RankEvidence) -> Kind:
    """The kind of incident as far as this rank can tell alone."""
    if evidence.bad_before:
        return Kind.GRADIENT_BEFORE_REDUCTION
    if evidence.bad_after:
        return Kind.GRADIENT_AFTER_REDUCTION
    if evidence.bad_loss:
        return Kind.LOSS
    return Kind.NORM_OVERFLOW if evidence.suspicious_before or evidence.suspicious_after else Kind.DEAD_STEP
