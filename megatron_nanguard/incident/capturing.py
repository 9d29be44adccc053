"""The step itself, saved to be run again in another job. Last of all: it takes the most time and explains the least.

capture/rank00005.json          digests of the micro-batches and of the suspect call; beside it, where asked for,
capture/rank00005.safetensors   micro-batches and random states (step), weights, buffers and optimizer (full)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_nanguard.capture import Captured, without_tensors
from megatron_nanguard.capture.tensor_file import free_bytes, in_words, write_tensors
from megatron_nanguard.coordination.vote import all_done, exchange
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.device import device_of
from megatron_nanguard.incident.collecting import Collector
from megatron_nanguard.incident.stage_faults import StageFaults
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.step.capture import TENSORS_SUFFIX, file_name
from megatron_nanguard.settings import SAVES_STEP

log = logging.getLogger("megatron_nanguard")

SLOWEST_BYTES_PER_SECOND = 32 << 20
"""Write speed that every rank is expected to have while all of them write to one file system."""
TOO_SLOW = "it took longer than the stage has time (--nanguard-deadline)"
NO_FILE = (0, 2**62)
"""Bytes to write and bytes free, sent by a rank that has nothing to write."""


@dataclass(frozen=True)
class Capturer:
    """Writes one rank's part of a step. What fails here costs its file and a line in the log, nothing else.

    Args:
        run: directory of the run.
        incident: directory of the incident, relative to the run.
    """

    voters: Voters
    run: RunDirectory
    incident: str
    watchdog: Watchdog
    faults: StageFaults

    def capture(self, collector: Collector) -> None:
        """Collect and write.

        Collective: all voters, where tensors are asked for.
        """
        self._begin(0.0)
        captured = self.faults.attempt("capture", collector.collect, None)
        saves_step = collector.level in SAVES_STEP
        if saves_step:
            captured = self._if_there_is_room(captured, collector)
        if captured is not None and captured.has_content:
            content = captured
            self.faults.attempt(
                "writing the capture", lambda: self._write(content, collector.guarded.torch_device), None
            )
        if saves_step:
            # The largest file takes longer than a collective may wait for its rank.
            self.watchdog.wait_for_all(f"captured/{self.incident}/{self.voters.ranks[0]}")
            all_done(True, self.voters, collector.guarded.torch_device)

    def _begin(self, seconds: float) -> None:
        self.watchdog.stage("capture", seconds=seconds)
        self.run.begin_stage(seconds)

    def _if_there_is_room(self, captured: Captured | None, collector: Collector) -> Captured | None:
        mine = NO_FILE if captured is None else self.faults.attempt("room", lambda: self._room(captured), NO_FILE)
        sizes, room = zip(*exchange(mine, self.voters, collector.guarded.torch_device), strict=True)
        self._begin(max(sizes) / SLOWEST_BYTES_PER_SECOND)
        if sum(sizes) <= min(room):
            return captured
        why_not = (
            f"--nanguard-capture {collector.level} takes {in_words(sum(sizes))} over all ranks, "
            f"{in_words(min(room))} are free in --nanguard-dir"
        )
        if dist.get_rank() == self.voters.ranks[0]:
            log.error("%s: digests alone are written", why_not)
        return None if captured is None else Captured(without_tensors(captured.record, why_not))

    def _room(self, captured: Captured) -> tuple[int, int]:
        """Bytes to write and bytes free."""
        free = self.run.attempt(self.incident, lambda: free_bytes(self.run.path), "find the free room for")
        return NO_FILE if free is None else (captured.num_bytes, free)

    def _write(self, captured: Captured, device: torch.device) -> None:
        """Write the tensors, then the record that names them. What cannot be written costs a line in the log."""
        name, record = file_name(captured.record.coordinates.rank), captured.record
        path = (self.run.path / self.incident / name).with_suffix(TENSORS_SUFFIX)
        why_not = self._write_tensors(path, captured.tensors, device) if captured.tensors else ""
        if why_not:
            why_not = f"{path.name} cannot be written: {why_not}"
            if not self.run.has_failed:
                log.error("%s; the step of this rank is not saved", why_not)
            record = without_tensors(record, why_not)
        self.run.write(f"{self.incident}/{name}", record)

    def _write_tensors(self, path: Path, tensors: Mapping[str, Tensor], device: torch.device) -> str:
        """Write the live tensors; why they could not be, empty when they are on disk.

        What is not written in time is given up: training goes on, and changes the tensors.
        """
        given_up = threading.Event()

        def write() -> str:
            device_of(device.type).take(device.index or 0)  # a thread has a current device of its own
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_tensors(path, tensors, given_up.is_set)
            except OSError as error:
                return error.strerror or str(error)
            return ""

        why_not = self.run.attempt(str(path.relative_to(self.run.path)), write)
        given_up.set()
        return TOO_SLOW if why_not is None else why_not
