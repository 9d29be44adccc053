"""What a section may look at: the merged incident, its directory, and a row per rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.rank_files import Track, untracked
from megatron_nanguard.postmortem.rank_table import RankRow, rank_table
from megatron_nanguard.records.fingerprint import FINGERPRINT_NAME, Fingerprint
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.json.record_file import read_record


@dataclass(frozen=True)
class OpenedIncident:
    """One incident, opened for a report.

    Attributes:
        incident: the merged incident.
        directory: where its files are.
        rows: one per rank of the world, in order; empty where nobody asked for pictures.
    """

    incident: Incident
    directory: Path
    rows: tuple[RankRow, ...] = ()

    def row(self, rank: int) -> RankRow | None:
        """The row of one rank; None for a rank that no row is of."""
        return next((row for row in self.rows if row.rank == rank), None)

    @property
    def home(self) -> Path:
        """The directory as a command needs it, wherever it is run."""
        return self.directory.absolute()

    @cached_property
    def fingerprint(self) -> Fingerprint | None:
        """What the run was started with; None where its file is gone, or does not lie above the incident."""
        try:
            found = read_record(Fingerprint, self.home.parent.parent / FINGERPRINT_NAME)
        except PostmortemError:
            return None
        return found if found.run_id == self.incident.run_id else None


def open_incident(incident: Incident, directory: Path, track: Track = untracked) -> OpenedIncident:
    """Read what the pictures need from the files of the ranks.

    Args:
        incident: the merged incident.
        directory: where its files are.
        track: told of every file that is read.
    Raises:
        PostmortemError: the incident's layout is none.
    """
    return OpenedIncident(incident, directory, rank_table(incident, directory, track))
