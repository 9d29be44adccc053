"""The step itself, saved to be run again in another job. Last of all: it takes the most time and explains the least.

capture/rank00005.json          digests of the micro-batches and of the suspect call; beside it, where asked for,
capture/rank00005.safetensors   micro-batches and random states (step), weights, buffers and optimizer (full)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch.distributed as dist

from megatron_nanguard.capture import Captured, without_tensors
from megatron_nanguard.capture.tensor_file import free_bytes, in_words, write_tensors
from megatron_nanguard.coordination.vote import all_done, exchange
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.incident.collecting import Collector
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.step.capture import TENSORS_SUFFIX, file_name
from megatron_nanguard.settings import SAVES_STEP

log = logging.getLogger("megatron_nanguard")

SLOWEST_BYTES_PER_SECOND = 32 << 20
"""Write speed that every rank is expected to have while all of them write to one file system."""
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

    def capture(self, collector: Collector) -> None:
        """Collect and write.

        Collective: all voters, where tensors are asked for.
        """
        self.watchdog.stage("capture")
        captured = None
        with Shield()("incident, capture"):
            captured = collector.collect()
        saves_step = collector.level in SAVES_STEP
        if saves_step:
            captured = self._if_there_is_room(captured, collector)
        with Shield()("incident, writing the capture"):
            if captured is not None and captured.has_content:
                self._write(captured)
        if saves_step:
            # The largest file takes longer than a collective may wait for its rank.
            self.watchdog.wait_for_all(f"captured/{self.incident}/{self.voters.ranks[0]}")
            all_done(True, self.voters, collector.guarded.torch_device)

    def _if_there_is_room(self, captured: Captured | None, collector: Collector) -> Captured | None:
        mine = NO_FILE
        with Shield()("incident, room for the capture"):
            if captured is not None:
                mine = (captured.num_bytes, free_bytes(self.run.path))
        sizes, free = zip(*exchange(mine, self.voters, collector.guarded.torch_device), strict=True)
        self.watchdog.stage("capture", seconds=max(sizes) / SLOWEST_BYTES_PER_SECOND)
        if sum(sizes) <= min(free):
            return captured
        why_not = (
            f"--nanguard-capture {collector.level} takes {in_words(sum(sizes))} over all ranks, "
            f"{in_words(min(free))} are free in --nanguard-dir"
        )
        if dist.get_rank() == self.voters.ranks[0]:
            log.error("%s: digests alone are written", why_not)
        return None if captured is None else Captured(without_tensors(captured.record, why_not))

    def _write(self, captured: Captured) -> None:
        """Write the tensors, then the record that names them. What cannot be written costs a line in the log."""
        name, record = file_name(captured.record.coordinates.rank), captured.record
        path = (self.run.path / self.incident / name).with_suffix(TENSORS_SUFFIX)
        try:
            if captured.tensors:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_tensors(path, captured.tensors)
        except OSError as error:
            why_not = f"{path.name} cannot be written: {error.strerror or error}"
            if not self.run.has_failed:
                log.error("%s; the step of this rank is not saved", why_not)
            record = without_tensors(record, why_not)
        self.run.write(f"{self.incident}/{name}", record)
