"""The optimizers under guard: taken on when they are built or first seen, found again by what the host hands over."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from megatron_nanguard.capture.model_state import state_bytes
from megatron_nanguard.device import SATURATION_WARNING
from megatron_nanguard.drill.planted_drills import PlantedDrills
from megatron_nanguard.errors import DrillError
from megatron_nanguard.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.capture_size import tell_capture_size
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.ward import Ward
from megatron_nanguard.health import watch_device
from megatron_nanguard.megatron_api import host_program, optimizers
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer, ModelChunk
from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.patching import Shield
from megatron_nanguard.watching.watcher import Watcher

log = logging.getLogger("megatron_nanguard")


class GuardedOptimizers:
    """All wards of one attempt.

    Args:
        host_checks: what of the host's was switched off, for the fingerprint.
    """

    def __init__(self, attempt: GuardedRun, shield: Shield, host_checks: host_program.HostChecks) -> None:
        self._attempt, self._shield, self._host_checks = attempt, shield, host_checks
        self._wards: list[Ward] = []
        self._sorted: list[list[Any]] = []

    def __iter__(self) -> Iterator[Ward]:
        return iter(self._wards)

    # ---------------------------------------------------------------- taken on

    def chunks_seen(self, chunks: Sequence[ModelChunk]) -> None:
        """Chunks whose parameters are being sorted: kept together for optimizers that are built past the factory."""
        others = [known for known in self._sorted if not _have_common(known, chunks)]
        joined = [chunk for known in self._sorted if _have_common(known, chunks) for chunk in known]
        joined += [chunk for chunk in chunks if not _have_common(joined, [chunk])]
        self._sorted = [*others, joined]

    def optimizer_made(self, optimizer: MegatronOptimizer, chunks: Sequence[ModelChunk]) -> None:
        """Take on an optimizer that the factory returned."""
        self._sorted.clear()
        self._take_on(optimizer, chunks)

    def training(self, chunks: Sequence[ModelChunk]) -> Ward:
        """The ward that a schedule trains; one that nobody has seen being built is taken on now."""
        return self._of_chunks(chunks) or self._take_on(None, self._sorted_with(chunks))

    def _sorted_with(self, chunks: Sequence[ModelChunk]) -> Sequence[Any]:
        """The chunks whose parameters were sorted together with these, as far as that was seen."""
        return next((known for known in self._sorted if _have_common(known, chunks)), chunks)

    def _take_on(self, optimizer: MegatronOptimizer | None, chunks: Sequence[ModelChunk]) -> Ward:
        electorate = self._attempt.meeting.electorate()
        ward = Ward(GuardedOptimizer(optimizer, chunks, electorate, self._attempt.settings, self._shield))
        self._wards.append(ward)
        self._watch_hardware(ward.subject)
        with self._shield("names"):
            ward.subject.learn()
            self._attempt.place = ward.subject.coordinates
            ward.watcher = self._watcher(ward.subject)
            self._write_down(ward.subject)
            ward.crew = self._crew(ward.subject)
            self._tell_of_capture(ward.subject)
        return ward

    def _watch_hardware(self, subject: GuardedOptimizer) -> None:
        """Begin with the first optimizer. A device that cannot be watched costs its readings, and nothing else."""
        if self._attempt.health is None:
            with Shield()("first look at the hardware"):
                rank, device = self._attempt.meeting.rank, subject.torch_device
                self._attempt.health = watch_device(rank, subject.device, device.index)

    def _write_down(self, subject: GuardedOptimizer) -> None:
        run = self._attempt.run
        if run is None:
            return
        run.write_map(subject.names, subject.coordinates, subject.sizes)
        if self._attempt.meeting.is_first("start"):
            run.write_fingerprint(subject.sizes.world, self._host_checks.changes())
            self._tell_of_device(subject)

    def _tell_of_device(self, subject: GuardedOptimizer) -> None:
        if self._host_checks.changes():
            log.info("Megatron's own NaN checks stand aside; one vote per step takes their place")
        facts = subject.device.facts()
        log.info("device %s (%s), overflow mode %s", facts.name, facts.backend, facts.overflow_mode)
        if facts.overflow_mode == "saturation":
            log.warning(SATURATION_WARNING)

    def _tell_of_capture(self, subject: GuardedOptimizer) -> None:
        if self._attempt.settings.capture == "full":
            size = state_bytes(subject.chunks, subject.names, subject.optimizer)
            tell_capture_size(self._attempt.meeting, len(self._wards), size)

    def _watcher(self, subject: GuardedOptimizer) -> Watcher | None:
        """``--nanguard-watch``; the last rank to find no matching module says so."""
        wanted, meeting = self._attempt.settings, self._attempt.meeting
        if wanted.watch is None:
            return None
        watcher = Watcher(
            wanted.watch,
            wanted.watch_steps,
            wanted.watch_above,
            rank=meeting.rank,
            directory=self._attempt.directory.path,
            speaks=partial(meeting.is_first, "watch"),
            guarded=self._shield,
        )
        num_matches = watcher.attach(name_modules(subject.chunks))
        if not num_matches and int(meeting.store("watch").add("none", 1)) == len(meeting.ranks):
            log.warning("--nanguard-watch %r matches no module on any rank; names are global", wanted.watch)
        return watcher

    def _crew(self, subject: GuardedOptimizer) -> PlantedDrills | None:
        drilling = self._attempt.drilling
        if drilling is None:
            return None
        try:
            return drilling.attach(subject.chunks, subject.names, self._attempt.meeting.store("drill"))
        except DrillError as error:
            log.error("%s", error)
            raise SystemExit(2) from None

    # ---------------------------------------------------------------- found again

    def of_optimizer(self, optimizer: MegatronOptimizer) -> Ward | None:
        """The ward of an optimizer or of one of its leaves."""
        for ward in self._wards:
            if ward.subject.optimizer is optimizer:
                return ward
        return self._of_chunks(optimizers.model_chunks(optimizer)) or next(
            (ward for ward in self._wards if ward.subject.is_open), None
        )

    def _of_chunks(self, chunks: Sequence[ModelChunk]) -> Ward | None:
        return next((ward for ward in self._wards if any(ward.subject.owns(chunk) for chunk in chunks)), None)

    def dismiss(self) -> None:
        """Take everything off their models, and watch the hardware no longer.

        All go together: the next one may get the id of one that is gone.
        """
        with self._shield("drill"):
            for ward in self._wards:
                ward.dismiss()
        self._wards.clear()
        if self._attempt.health is not None:
            self._attempt.health.close()
            self._attempt.health = None


def _have_common(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return any(one is other for one in some for other in others)
