"""One attempt from the handshake to the last file: whether the run is guarded, by which policy, where it writes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from megatron_nanguard.guarded_run.drilling import Drilling
from megatron_nanguard.guarded_run.run_files import RunFiles
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.health import HealthWatch
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.patch_points import ESSENTIAL, release_line
from megatron_nanguard.patching import KNOWN
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.coordinates import Coordinates
from megatron_nanguard.settings import PREFIX, Settings

log = logging.getLogger("megatron_nanguard")


class GuardedRun:
    """The attempt of this rank.

    Args:
        meeting: the handshake of its parallel world.
        notes: what a reader of the status should know; grows.
    Attributes:
        run_id: name of the attempt, the same on all ranks.
        policy: what is done about an incident, the same on all ranks.
        speaks: this rank tells the user.
        run: None before the start, and where it failed.
        drilling: None where no fault is planted.
        place: None before a model told where this rank stands.
        health: of the hardware under this rank; None before a model told which device that is.
    """

    def __init__(self, settings: Settings, meeting: RunHandshake, notes: list[str]) -> None:
        self.settings, self.meeting, self.notes = settings, meeting, notes
        tolerates = settings.on_nonfinite != "skip" or host_program.trainer_tolerates_skips()
        self.policy = settings.on_nonfinite if tolerates else "abort"
        self.run_id = ""
        self.speaks = False
        self.run: RunFiles | None = None
        self.drilling: Drilling | None = None
        self.place: Coordinates | None = None
        self.health: HealthWatch | None = None

    def agree(self, declined: Mapping[str, str]) -> bool:
        """Meet the other ranks; whether all of them run guarded. If not, one rank has said why.

        Args:
            declined: why, by patch group that could not be applied here.
        Raises:
            SystemExit: --nanguard-strict, and the guard would not be what was asked for.
        """
        agreement = self.meeting.agree(self.settings, [*declined])
        self.speaks = self.meeting.rank == agreement.speaker
        self.run_id = agreement.run_id
        self._tell_of_host({group: reason for group, reason in declined.items() if group not in ESSENTIAL})
        missing = "; ".join(declined[group] for group in ESSENTIAL if group in declined)
        why_not = missing if agreement.go else agreement.reason
        if why_not:
            self._run_unguarded(why_not)
        return not why_not

    def _tell_of_host(self, lost: Mapping[str, str]) -> None:
        """A Megatron we do not know, and what is lost where a function is not as we know it. Alike on all ranks."""
        problems = [f"{reason} (patch group {group!r})" for group, reason in lost.items()]
        line = release_line()
        if line is not None and not KNOWN[0] <= line <= KNOWN[1]:
            problems.append(
                f"Megatron core {host_program.core_version()} is outside of 0.8 to 0.19, which this version knows; "
                "functions that look as expected are wrapped, nanguard doctor lists them"
            )
        if problems and self.settings.strict:
            self._refuse("; ".join(problems))
        for problem in problems:
            self.warn(problem)

    def _run_unguarded(self, reason: str) -> None:
        """Say it once, from one rank; with --nanguard-strict leave instead."""
        message = f"all ranks run unguarded: {reason}"
        if self.settings.strict:
            self._refuse(message)
        self.warn(message)

    def _refuse(self, message: str) -> NoReturn:
        """End every rank; one says why."""
        sys.exit(f"nanguard: --nanguard-strict: {message}" if self.speaks else 1)

    def warn(self, message: str) -> None:
        """Note it on every rank, and say it from one."""
        self.notes.append(message)
        if self.speaks:
            log.warning(message)

    def start(self) -> None:
        """Open the run's directory and get the drills ready. Local: a rank on which it fails votes all the same."""
        settings, meeting = self.settings, self.meeting
        self.run = RunFiles(settings, self.run_id, meeting.rank, partial(meeting.is_first, "cannot write"))
        if settings.drill:
            self.drilling = Drilling(settings.drill, meeting.rank, dist.get_world_size())
        if self.speaks:
            self._tell_of_start(self.run)

    def _tell_of_start(self, run: RunFiles) -> None:
        if self.policy != self.settings.on_nonfinite:
            log.warning("this trainer takes a skipped step for a fatal error: policy abort instead of skip")
        ranks = len(self.meeting.ranks)
        log.info("guards %d ranks, policy %s, files in %s", ranks, self.policy, run.directory.path)
        if self.drilling is not None and self.settings.drill:
            run.write_drill_plan(self.settings.drill)
            log.warning("this run is a drill: faults are planted on purpose (%s)", self.settings.drill)
            self.drilling.mark_checkpoints()

    @property
    def directory(self) -> RunDirectory:
        """Where incidents are written; where the start failed, the place that needs no host to tell it."""
        if self.run is not None:
            return self.run.directory
        return RunDirectory(Path(self.settings.dir or PREFIX), self.run_id, log.warning)

    def write_last(self, fired: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """What became of the drills, and how the guard fared."""
        if self.run is None:
            return
        for crew in self.drilling.crews if self.drilling else ():
            if crew.drills:
                self.run.write_drill(crew.record())
        self.run.write_status(self.place, fired, counts, tuple(self.notes))
