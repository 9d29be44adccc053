"""One guarded run of this rank, from the handshake to the last file: which policy applies and where it writes."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from megatron_nanguard.guarded_run.run_drills import RunDrills
from megatron_nanguard.guarded_run.run_files import RunFiles
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.health.health_watch import HealthWatch
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.patch_points import ESSENTIAL, release_line
from megatron_nanguard.patching.point import KNOWN
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.coordinates import Coordinates
from megatron_nanguard.settings import PREFIX, Settings

log = logging.getLogger("megatron_nanguard")


class GuardedRun:
    """The run as this rank sees it.

    Args:
        handshake: with the other ranks of its parallel world.
        shield: keeps faults of ours out of training, and remembers the first one.
        counts: steps guarded, alarms, incidents, checks at a lower scale; grows.
        notes: sentences for the reader of the status file; grows.
    Attributes:
        run_id: name of the run, the same on all ranks.
        policy: what is done about an incident, the same on all ranks.
        speaks: this rank logs what concerns all of them.
        files: None before the start, and where the start failed.
        drills: None where no fault is planted.
        coordinates: of this rank; None before a model is known.
        health: of the hardware under this rank; None before a model is known.
        failed_stages: stages of incidents in which the guard itself failed on this rank, with the fault.
    """

    def __init__(
        self, settings: Settings, handshake: RunHandshake, shield: Shield, counts: Counter[str], notes: list[str]
    ) -> None:
        self.settings, self.handshake = settings, handshake
        self.shield, self.counts, self.notes = shield, counts, notes
        tolerates = settings.on_nonfinite != "skip" or host_program.trainer_tolerates_skips()
        self.policy = settings.on_nonfinite if tolerates else "abort"
        self.run_id = ""
        self.speaks = False
        self.files: RunFiles | None = None
        self.drills: RunDrills | None = None
        self.coordinates: Coordinates | None = None
        self.health: HealthWatch | None = None
        self.failed_stages: dict[str, str] = {}

    def agree(self, declined: Mapping[str, str]) -> bool:
        """Meet the other ranks; whether all of them run guarded. If not, one rank has logged why.

        Args:
            declined: reason by patch group that could not be applied here.
        Raises:
            SystemExit: --nanguard-strict, and the guard would not be what was asked for.
        """
        agreement = self.handshake.agree(self.settings, [*declined])
        self.speaks = self.handshake.rank == agreement.speaker
        self.run_id = agreement.run_id
        self._warn_of_host({group: reason for group, reason in declined.items() if group not in ESSENTIAL})
        missing = "; ".join(declined[group] for group in ESSENTIAL if group in declined)
        why_not = agreement.reason or missing
        if why_not:
            message = f"all ranks run unguarded: {why_not}"
            if self.settings.strict:
                self._refuse(message)
            self.warn(message)
        return not why_not

    def _warn_of_host(self, lost: Mapping[str, str]) -> None:
        """Warn of an unknown Megatron and of patch groups that could not be applied. The same on all ranks."""
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

    def _refuse(self, message: str) -> NoReturn:
        """End every rank; one prints why."""
        sys.exit(f"nanguard: --nanguard-strict: {message}" if self.speaks else 1)

    def warn(self, message: str) -> None:
        """Note a warning for the status file of every rank, and log it on one."""
        self.notes.append(message)
        if self.speaks:
            log.warning(message)

    def start(self) -> None:
        """Open the run's directory and get the drills ready. Local: a rank on which it fails votes all the same."""
        settings, handshake = self.settings, self.handshake
        self.files = RunFiles(settings, self.run_id, handshake.rank, partial(handshake.is_first, "cannot write"))
        if settings.drill:
            self.drills = RunDrills(settings.drill, handshake.rank, dist.get_world_size())
        if self.speaks:
            self._log_start(self.files)

    def _log_start(self, files: RunFiles) -> None:
        if self.policy != self.settings.on_nonfinite:
            log.warning("this trainer takes a skipped step for a fatal error: policy abort instead of skip")
        ranks = len(self.handshake.ranks)
        log.info("guards %d ranks, policy %s, files in %s", ranks, self.policy, files.directory.path)
        if self.drills is not None and self.settings.drill:
            files.write_drill_plan(self.settings.drill)
            log.warning("this run is a drill: faults are planted on purpose (%s)", self.settings.drill)
            self.drills.mark_checkpoints()

    @property
    def directory(self) -> RunDirectory:
        """Where incidents are written."""
        return self._directory_without_start if self.files is None else self.files.directory

    @cached_property
    def _directory_without_start(self) -> RunDirectory:
        """For a rank on which the start failed: needs nothing that may have failed there."""
        return RunDirectory(Path(self.settings.dir or PREFIX), self.run_id, log.warning, self.settings.deadline / 2)

    def end_threads(self) -> None:
        """End the threads that write files and ask the store; waits at most 1 s for each."""
        self.handshake.side.end()
        self.directory.side.end()

    def write_last(self, fired: Mapping[str, int]) -> None:
        """Write what became of the drills, and the status of the guard on this rank.

        Args:
            fired: calls by patched function.
        """
        if self.files is None:
            return
        for planted in self.drills.planted if self.drills else ():
            if planted.drills:
                self.files.write_drill(planted.record())
        self.files.write_status(self.coordinates, fired, self.counts, tuple(self.notes))
