"""The directory of a run, as its training processes use it: trouble with it costs a line of the log, never a step.

The file system is asked in a thread of its own, for it may hang: a network file system does when its server is gone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.limits import cut_to_limit
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.json.record_file import write_record
from megatron_nanguard.records.postmortem import Postmortem
from megatron_nanguard.time_limit import SideThread, TookTooLong

PATIENCE_SECONDS: Final = 60.0
SECOND_PATIENCE_SECONDS: Final = 1.0
"""The patience for a file system that was late and has not answered since: an incident has many files."""

Result = TypeVar("Result")


class RunDirectory:
    """The directory of one run, `DIR/runs/<run id>`; it is created by the first write.

    Attributes:
        side: the thread that reads and writes.
    """

    def __init__(self, root: Path, run_id: str, log: Callable[[str], None], patience: float = PATIENCE_SECONDS) -> None:
        """Set the path; nothing is created.

        Args:
            root: `--nanguard-dir`.
            run_id: name of the run, the same on all ranks.
            log: called once, with a line about the first file that cannot be written.
            patience: seconds to wait for the file system, in one stage of an incident or for one file outside of it.
        """
        self.path = root / "runs" / run_id
        self.patience = patience
        self._log = log
        self._has_logged = False
        self.side = SideThread("nanguard-files")
        self._until: float | None = None
        self._is_late = False
        self._incidents_of_step: Counter[int] = Counter()
        self.left_out: list[str] = []
        """Names of the files of the current incident that could not be written or read in time."""

    @property
    def has_failed(self) -> bool:
        """Whether a file of the current incident could not be written or read."""
        return bool(self.left_out)

    def begin_incident(self) -> None:
        """Forget what was left out of the incident before."""
        self.left_out.clear()

    def begin_stage(self, seconds: float = 0.0) -> None:
        """Begin a stage of an incident: all its files together have the patience.

        Args:
            seconds: further time, for large files.
        """
        self._until = time.monotonic() + self.patience + seconds

    def end_incident(self) -> None:
        """From now on each file has the patience again."""
        self._until = None

    def attempt(self, name: str, work: Callable[[], Result], doing: str = "write") -> Result | None:
        """Do something with files beside this thread, for as long as the stage has time.

        Args:
            name: of the file, relative to the run, for the log.
            work: reads or writes; it goes on when its time is over, but is not waited for.
            doing: what cannot be done with the file, for the log.
        Returns:
            Its result; None where the file system refused or was late, which is logged once per run.
        """
        seconds = self.patience if self._until is None else max(self._until - time.monotonic(), 0.0)
        if self._is_late:
            seconds = min(seconds, SECOND_PATIENCE_SECONDS)
        try:
            result = self.side.do(work, seconds)
            self._is_late = False
            return result
        except TookTooLong:
            self._is_late = True
            self._complain(doing, name, "the file system does not answer in time")
        except OSError as error:
            self._complain(doing, name, error.strerror or str(error))
        except PostmortemError as error:
            self._complain(doing, name, str(error))
        return None

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

        def remove() -> None:
            # rmdir fails while files of other ranks, or other incidents, are there; the last rank removes both.
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)
                folder.rmdir()
                folder.parent.rmdir()

        self.attempt(f"{incident}/{name}", remove)

    def write(self, relative: str, record: object) -> Path | None:
        """Write one record as JSON, whole or not at all.

        Args:
            relative: path of the file inside the run directory.
            record: a record of `records/`.
        Returns:
            The file, or None if it could not be written; the first failure is logged.
        """
        target = self.path / relative

        def write() -> Path:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_record(target, record)
            return target

        return self.attempt(relative, write)

    def write_postmortem(self, incident: str, postmortem: Postmortem) -> Path | None:
        """Write the post-mortem of this rank, cut to the size that its file may have.

        Args:
            incident: directory of the incident, from `incident_path`.
            postmortem: what to write; the one at the end of the incident replaces the one written at its signal.
        """
        return self.write(f"{incident}/{postmortem_name(postmortem)}", cut_to_limit(postmortem))

    def has_been_logged(self, name: str) -> None:
        """A file could not be written, and the caller has logged it."""
        self.left_out.append(name)
        self._has_logged = True

    def _complain(self, doing: str, name: str, reason: str) -> None:
        self.left_out.append(name)
        if not self._has_logged:
            self._has_logged = True
            what = f"cannot {doing} {self.path / name}: {reason}"
            self._log(f"{what}; training goes on, further files that fail are not mentioned")


def postmortem_name(postmortem: Postmortem) -> str:
    """Name the file of a post-mortem: `rank00005_tp1pp1dp0.json`."""
    return rank_name(postmortem.coordinates, postmortem.sizes)


def rank_name(place: Coordinates, sizes: ParallelSizes) -> str:
    """Name the file of a rank: `rank00005_tp1pp1dp0.json`."""
    return f"rank{place.rank:05d}_{place.label(sizes)}.json"


def trace_name(place: Coordinates, sizes: ParallelSizes) -> str:
    """Name the trace of a rank: `trace00005_tp1pp1dp0.json`."""
    return f"trace{place.rank:05d}_{place.label(sizes)}.json"
