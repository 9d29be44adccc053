"""Write the files of a run from its training processes; a file that cannot be written never stops training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from megatron_nanguard.postmortem.limits import cut_to_limit
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.json.record_file import write_record
from megatron_nanguard.records.postmortem import Postmortem


class RunDirectory:
    """The directory of one run, `DIR/runs/<run id>`; it is created by the first write."""

    def __init__(self, root: Path, run_id: str, log: Callable[[str], None]) -> None:
        """Set the path; nothing is created.

        Args:
            root: `--nanguard-dir`.
            run_id: name of the run, the same on all ranks.
            log: called once, with a line about the first file that cannot be written.
        """
        self.path = root / "runs" / run_id
        self._log = log
        self._incidents_of_step: Counter[int] = Counter()
        self.has_failed = False
        """A file could not be written, and the log says so."""

    def incident_path(self, step: int) -> str:
        """Name the directory of a new incident, relative to the run; every rank calls this once per incident."""
        number = self._incidents_of_step[step]
        self._incidents_of_step[step] += 1
        return f"incidents/step_{step:08d}" + (f".{number}" if number else "")

    def withdraw(self, incident: str, step: int, name: str) -> None:
        """Remove this rank's file of an incident that was a false alarm; every rank calls this.

        Args:
            incident: directory of the incident, from `incident_path`.
            step: its step.
            name: name of this rank's file.
        """
        self._incidents_of_step[step] -= 1
        folder = self.path / incident
        # rmdir fails while files of other ranks, or other incidents, are there; the last rank removes the directories.
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
            folder.rmdir()
            folder.parent.rmdir()

    def write(self, relative: str, record: object) -> Path | None:
        """Write one record as JSON, whole or not at all.

        Args:
            relative: path of the file inside the run directory.
            record: a record of `records/`.
        Returns:
            The file, or None if it could not be written; the first failure is logged.
        """
        target = self.path / relative
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_record(target, record)
        except OSError as error:
            self._complain(target, error)
            return None
        return target

    def write_postmortem(self, incident: str, postmortem: Postmortem) -> Path | None:
        """Write the post-mortem of this rank, cut to the size that its file may have.

        Args:
            incident: directory of the incident, from `incident_path`.
            postmortem: what to write; the one at the end of the incident replaces the one written at its signal.
        """
        return self.write(f"{incident}/{postmortem_name(postmortem)}", cut_to_limit(postmortem))

    def _complain(self, target: Path, error: OSError) -> None:
        if not self.has_failed:
            self.has_failed = True
            reason = error.strerror or error
            self._log(f"cannot write {target}: {reason}; training goes on, further files that fail are not mentioned")


def postmortem_name(postmortem: Postmortem) -> str:
    """Name the file of a post-mortem: `rank00005_tp1pp1dp0.json`."""
    return rank_name(postmortem.coordinates, postmortem.sizes)


def rank_name(place: Coordinates, sizes: ParallelSizes) -> str:
    """Name the file of a rank: `rank00005_tp1pp1dp0.json`."""
    return f"rank{place.rank:05d}_{place.label(sizes)}.json"


def trace_name(place: Coordinates, sizes: ParallelSizes) -> str:
    """Name the trace of a rank: `trace00005_tp1pp1dp0.json`."""
    return f"trace{place.rank:05d}_{place.label(sizes)}.json"
