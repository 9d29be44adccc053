"""All optimizers under guard: put under guard when they are built or first trained, found again in every step."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from megatron_nanguard.capture.model_state import state_bytes
from megatron_nanguard.capture.tensor_file import in_words
from megatron_nanguard.device import SATURATION_WARNING
from megatron_nanguard.errors import DrillError
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.health.health_watch import watch_device
from megatron_nanguard.megatron_api import host_program, optimizers
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer, ModelChunk
from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.watching.watcher import Watcher

log = logging.getLogger("megatron_nanguard")


class GuardedOptimizers:
    """The optimizers of one guarded run.

    Args:
        host_checks: the NaN checks of the host that were switched off, for the fingerprint.
    """

    def __init__(self, run: GuardedRun, host_checks: host_program.HostChecks) -> None:
        self._run, self._host_checks = run, host_checks
        self._all: list[GuardedOptimizer] = []
        self._sorted: list[list[ModelChunk]] = []

    def __iter__(self) -> Iterator[GuardedOptimizer]:
        return iter(self._all)

    # ---------------------------------------------------------------- put under guard

    def chunks_seen(self, chunks: Sequence[ModelChunk]) -> None:
        """Remember chunks whose parameters are sorted together: an optimizer built past the factory trains them."""
        with self._run.shield("chunks"):
            others = [known for known in self._sorted if not _have_common(known, chunks)]
            joined = [chunk for known in self._sorted if _have_common(known, chunks) for chunk in known]
            joined += [chunk for chunk in chunks if not _have_common(joined, [chunk])]
            self._sorted = [*others, joined]

    def optimizer_made(self, optimizer: MegatronOptimizer, chunks: Sequence[ModelChunk]) -> None:
        """Put an optimizer under guard that the factory returned."""
        self._sorted.clear()
        self._add(optimizer, chunks)

    def training(self, chunks: Sequence[ModelChunk]) -> GuardedOptimizer:
        """The optimizer whose chunks a schedule trains.

        One built past the factory is put under guard here, with the chunks whose parameters were sorted together.
        """
        sorted_together = next((known for known in self._sorted if _have_common(known, chunks)), chunks)
        return self._of_chunks(chunks) or self._add(None, sorted_together)

    def _add(self, optimizer: MegatronOptimizer | None, chunks: Sequence[ModelChunk]) -> GuardedOptimizer:
        run = self._run
        guarded = self._made(optimizer, chunks)
        self._all.append(guarded)
        self._watch_hardware(guarded)
        with run.shield("names"):
            guarded.learn()
            run.coordinates = guarded.coordinates
            guarded.watcher = self._watcher(guarded)
            self._write_files(guarded)
            self._plant_drills(guarded)
            if run.settings.capture == "full":
                size = state_bytes(guarded.chunks, guarded.names, guarded.optimizer)
                log_capture_size(run.handshake, len(self._all), size)
        return guarded

    def _made(self, optimizer: MegatronOptimizer | None, chunks: Sequence[ModelChunk]) -> GuardedOptimizer:
        run, voting_ranks = self._run, self._run.handshake.voting_ranks()
        with run.shield("optimizer"):
            return GuardedOptimizer(optimizer, chunks, voting_ranks, run.settings, run.shield)
        # Without parts that look at the model it votes all the same: the others wait for it, and learn of the fault.
        blind = GuardedOptimizer(optimizer, (), voting_ranks, replace(run.settings, replay="off"), run.shield)
        blind.chunks = list(chunks)
        return blind

    def _watch_hardware(self, guarded: GuardedOptimizer) -> None:
        """Start with the first optimizer. A device that cannot be read costs its readings, and nothing else."""
        if self._run.health is None:
            with Shield()("first look at the hardware"):
                device = guarded.torch_device
                self._run.health = watch_device(self._run.handshake.rank, guarded.device, device.index)

    def _write_files(self, guarded: GuardedOptimizer) -> None:
        """Parameter map of this rank; the first rank also writes the fingerprint and logs the device."""
        files = self._run.files
        if files is None:
            return
        files.write_map(guarded.names, guarded.coordinates, guarded.sizes)
        if self._run.handshake.is_first("start"):
            files.write_fingerprint(guarded.sizes.world, self._host_checks.changes())
            self._log_device(guarded)

    def _log_device(self, guarded: GuardedOptimizer) -> None:
        if self._host_checks.changes():
            log.info("Megatron's own NaN checks stand aside; one vote per step takes their place")
        facts = guarded.device.facts()
        log.info("device %s (%s), overflow mode %s", facts.name, facts.backend, facts.overflow_mode)
        if facts.overflow_mode == "saturation":
            log.warning(SATURATION_WARNING)

    def _watcher(self, guarded: GuardedOptimizer) -> Watcher | None:
        """Attach `--nanguard-watch`. The last rank to find no matching module logs that."""
        settings, handshake = self._run.settings, self._run.handshake
        if settings.watch is None:
            return None
        watcher = Watcher(
            name_modules(guarded.chunks),
            settings.watch,
            settings.watch_steps,
            settings.watch_above,
            rank=handshake.rank,
            directory=self._run.directory.path,
            speaks=partial(handshake.is_first, "watch"),
            guarded=self._run.shield,
            write=self._run.directory.attempt,
        )
        if not watcher.num_modules and int(handshake.store("watch").add("none", 1)) == len(handshake.ranks):
            log.warning("--nanguard-watch %r matches no module on any rank; names are global", settings.watch)
        return watcher

    def _plant_drills(self, guarded: GuardedOptimizer) -> None:
        if self._run.drills is not None:
            try:
                store = self._run.handshake.store("drill")
                guarded.drills = self._run.drills.attach(guarded.chunks, guarded.names, store)
            except DrillError as error:
                log.error("%s", error)
                raise SystemExit(2) from None

    # ---------------------------------------------------------------- found again

    def of_optimizer(self, optimizer: MegatronOptimizer) -> GuardedOptimizer | None:
        """Find the guarded optimizer of the host's optimizer or of one of its leaves."""
        for guarded in self._all:
            if guarded.optimizer is optimizer:
                return guarded
        return self._of_chunks(optimizers.model_chunks(optimizer)) or self.open()

    def open(self) -> GuardedOptimizer | None:
        """The first one whose step is running."""
        return next((guarded for guarded in self._all if guarded.step.is_open), None)

    def _of_chunks(self, chunks: Sequence[ModelChunk]) -> GuardedOptimizer | None:
        return next((guarded for guarded in self._all if any(guarded.owns(chunk) for chunk in chunks)), None)

    def dismiss(self) -> None:
        """Remove every hook of ours from the models, and stop watching the hardware.

        All optimizers go together: the next one may get the id of one that is gone.
        """
        with self._run.shield("drill"):
            for guarded in self._all:
                guarded.detach()
        self._all.clear()
        health, self._run.health = self._run.health, None
        if health is not None:
            with Shield()("end of the hardware's watch"):
                health.close()


def log_capture_size(handshake: RunHandshake, optimizer: int, num_bytes: int) -> None:
    """Log what each incident will write with `--nanguard-capture full`: at the start, not when the disk is full.

    Every rank adds its part; the last one logs the sum. Never waits.

    Args:
        optimizer: running number of the optimizer on this rank.
        num_bytes: size of its model and optimizer state on this rank.
    """
    sums = handshake.store(f"capture/{optimizer}")
    sums.add("bytes", num_bytes)
    if int(sums.add("ranks", 1)) == len(handshake.ranks):
        total = in_words(int(sums.add("bytes", 0)))
        log.info("--nanguard-capture full: each incident takes %s over all %d ranks", total, len(handshake.ranks))


def _have_common(some: Sequence[ModelChunk], others: Sequence[ModelChunk]) -> bool:
    return any(one is other for one in some for other in others)
