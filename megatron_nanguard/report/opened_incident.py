"""Open an incident for the sections of the report: the merged incident, its directory, and a row per rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from megatron_nanguard.postmortem.job_history import fingerprint_of
from megatron_nanguard.postmortem.rank_files import Track, untracked
from megatron_nanguard.postmortem.rank_table import RankRow, rank_table
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.run.fingerprint import Fingerprint


@dataclass(frozen=True)
class OpenedIncident:
    """One incident, opened for a report.

    Attributes:
        incident: the merged incident.
        directory: where its files are.
        rows: one per rank of the world, in order; empty where no section needs them.
    """

    incident: Incident
    directory: Path
    rows: tuple[RankRow, ...] = ()

    def row(self, rank: int) -> RankRow | None:
        """Return the row of one rank; None if there is none."""
        return next((row for row in self.rows if row.rank == rank), None)

    @property
    def absolute_directory(self) -> Path:
        """The absolute directory, for commands that are run elsewhere."""
        return self.directory.absolute()

    @cached_property
    def fingerprint(self) -> Fingerprint | None:
        """What the run was started with; None where the file is missing, or belongs to another run."""
        found = fingerprint_of(self.absolute_directory.parent.parent)
        return found if found and found.run_id == self.incident.run_id else None


def open_incident(incident: Incident, directory: Path, track: Track = untracked) -> OpenedIncident:
    """Open an incident: read the rows from the files of its ranks.

    Args:
        incident: the merged incident.
        directory: where its files are.
        track: yields the names of the files that are read, and may show progress.
    Raises:
        PostmortemError: the parallel layout in the incident is invalid.
    """
    return OpenedIncident(incident, directory, rank_table(incident, directory, track))
