"""Read the status files of all ranks of a run, and count how often each patch point was called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.record_file import read_record
from megatron_nanguard.records.run.status import Status


def num_calls(target: str, statuses: Sequence[Status]) -> str:
    """Say how often the ranks called the target of a patch point: "12", or "8 to 12" if they differ."""
    calls = [status.points_fired.get(target, 0) for status in statuses]
    least, most = min(calls), max(calls)
    return str(most) if least == most else f"{least} to {most}"


def read_statuses(run: Path) -> list[Status]:
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
    return [read_record(Status, file) for file in files]
