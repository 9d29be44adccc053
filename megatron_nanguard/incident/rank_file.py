"""The post-mortem of this rank: on disk from the first stage on, and rewritten with what each stage adds to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.incident.rank_evidence import RankEvidence, kind_of
from megatron_nanguard.incident.stage_faults import StageFaults
from megatron_nanguard.megatron_api import host_program, optimizers
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Flags, Postmortem, RngDigests, ScalerState
from megatron_nanguard.sentinel.vote_flags import Flag

FIRST_VERSION = "first post-mortem"
"""The stage that makes it; without it this rank has no file in the incident."""
NO_RNG = RngDigests("", "", "", "", {})


class RankFile:
    """The file of this rank in the directory of an incident.

    Every version is written before the next thing that can fail.

    Args:
        run: directory of the run.
        incident: directory of the incident, relative to the run.
        faults: of the stages of this incident, which the file names.
    Attributes:
        postmortem: as last made, on disk or not; None where its first version could not be made.
    """

    def __init__(self, run: RunDirectory, incident: str, faults: StageFaults) -> None:
        self._run, self._incident, self._faults = run, incident, faults
        self.postmortem: Postmortem | None = None

    def begin(self, make: Callable[[], Postmortem]) -> None:
        """Make and write the first version, what this rank knows alone."""
        self._faults.attempt(FIRST_VERSION, lambda: self._write(make()), False, is_vital=True)

    def add(self, stage: str, **known: Any) -> bool:
        """Write it again with what a stage found, and with the stages that have failed by now.

        Args:
            known: attributes of the post-mortem.
        Returns:
            Whether it is on disk.
        """
        postmortem = self.postmortem
        if postmortem is None:
            return False
        return self._faults.attempt(
            f"post-mortem, {stage}",
            lambda: self._write(self._noted(replace(postmortem, **known))),
            False,
            is_vital=True,
        )

    def add_faults(self) -> None:
        """Write it again if a stage has failed since the last version."""
        postmortem = self.postmortem
        if postmortem is not None and self._noted(postmortem) != postmortem:
            self.add("faults")

    def _noted(self, postmortem: Postmortem) -> Postmortem:
        new = tuple(note for note in self._faults.notes() if note not in postmortem.notes)
        flags = replace(postmortem.flags, own_fault=postmortem.flags.own_fault or bool(new))
        return replace(postmortem, flags=flags, notes=(*postmortem.notes, *new))

    def _write(self, postmortem: Postmortem) -> bool:
        self.postmortem = postmortem
        return self._run.write_postmortem(self._incident, postmortem) is not None


def first_postmortem(
    guarded: GuardedOptimizer, alarm: Alarm, evidence: RankEvidence, run_id: str, policy: str, fault: str | None
) -> Postmortem:
    """This rank's post-mortem as far as it is known without the others.

    Args:
        policy: as the user asked.
        fault: of the guard's own on this rank, if there was one.
    Sync: a few host reads.
    """
    step = guarded.step
    norm = float(step.norms[-1]) if alarm.has(Flag.DEAD_STEP) and step.norms else None
    return Postmortem(
        run_id=run_id,
        step=step.number,
        kind=kind_of([evidence.signs]),
        phase="signal",
        coordinates=guarded.coordinates,
        sizes=guarded.sizes,
        host=socket.gethostname(),
        pid=os.getpid(),
        device=guarded.device.facts(),
        microbatches=evidence.microbatches,
        local=evidence.local,
        reduced=evidence.reduced,
        grad_norm=norm,
        clip_coefficient=guarded.clip_coefficient(norm),
        loss_scale=optimizers.loss_scale(alarm.optimizer),
        scaler=_scaler(guarded, alarm),
        rng=step.rng.digests() if step.rng else NO_RNG,
        flags=Flags(
            local=evidence.signs.bad_before,
            reduced=evidence.signs.bad_after,
            loss=evidence.signs.bad_loss,
            own_fault=fault is not None,
            dead_step=alarm.has(Flag.DEAD_STEP),
        ),
        ranks=None,
        groups=(),
        policy=policy,
        versions=host_program.versions(),
        notes=tuple(_notes(guarded, alarm, fault)),
    )


def _notes(guarded: GuardedOptimizer, alarm: Alarm, fault: str | None) -> list[str]:
    notes: list[str] = [phrase("a fault of the guard's own on this rank: {fault}", fault=fault)] if fault else []
    if alarm.has(Flag.DEAD_STEP):
        notes.append(phrase("the step before this one was applied although its gradient norm was not finite"))
    if not guarded.step.before.per_parameter:
        notes.append(
            phrase("one norm per bucket was taken (--nanguard-norms bucket): parameters are named only where counted")
        )
    return notes


def _scaler(guarded: GuardedOptimizer, alarm: Alarm) -> ScalerState | None:
    """State of a dynamic loss scaler before this step, which is counted already."""
    if not optimizers.is_dynamic(alarm.optimizer):
        return None
    in_search, skips = guarded.tally.before
    return ScalerState(
        in_search=in_search,
        just_raised=not in_search and alarm.has(Flag.RAISED_SCALE),
        skips_in_a_row=skips,
    )
