"""Read the status files of all ranks of a run, and count how often each patch point was called."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.record_file import read_record
from megatron_nanguard.records.run.status import Status


@dataclass(frozen=True)
class FiredCounts:
    """How often each target of a patch point was called.

    Attributes:
        num_ranks: number of ranks with a status file.
        least, most: calls on the rank with the fewest and with the most calls, by target.
        notes: notes of the ranks, each once.
    """

    num_ranks: int
    least: dict[str, int]
    most: dict[str, int]
    notes: tuple[str, ...]

    def words(self, target: str) -> str:
        """Say how often a target was called: "12", or "8 to 12" if the ranks differ."""
        least, most = self.least.get(target, 0), self.most.get(target, 0)
        return str(most) if least == most else f"{least} to {most}"


def read_statuses(run: Path) -> FiredCounts:
    """Read every status file of a run.

    Raises:
        PostmortemError: there is no status file, or one cannot be read; the message says which path to give instead.
    """
    if not os.path.isdir(run):
        raise PostmortemError(f"{run} is no directory; give the directory of one run, DIR/runs/RUN")
    files = sorted((run / "status").glob("rank*.json"))
    if not files:
        newest = "; give one of its runs/" if (run / "runs").is_dir() else ""
        raise PostmortemError(f"{run} holds no status files; they are written when a guarded run ends{newest}")
    statuses = [read_record(Status, file) for file in files]
    points = sorted({name for status in statuses for name in status.points_fired})
    calls = {name: [status.points_fired.get(name, 0) for status in statuses] for name in points}
    return FiredCounts(
        num_ranks=len(statuses),
        least={name: min(seen) for name, seen in calls.items()},
        most={name: max(seen) for name, seen in calls.items()},
        notes=tuple(dict.fromkeys(note for status in statuses for note in status.notes)),
    )
