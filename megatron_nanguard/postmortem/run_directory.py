"""The directory of one run, as the training process writes it: evidence first, and never at the run's expense."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from megatron_nanguard.postmortem.limits import fit
from megatron_nanguard.records.atomic_write import atomic_write
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.json.conversion import to_json
from megatron_nanguard.records.postmortem import Postmortem


class RunDirectory:
    """Where one attempt writes: `DIR/runs/<run id>`. Nothing is created before the first write."""

    def __init__(self, root: Path, run_id: str, log: Callable[[str], None]) -> None:
        """Name the directory.

        Args:
            root: `--nanguard-dir`.
            run_id: name of the attempt, the same on all ranks.
            log: takes the one line that it costs when something cannot be written.
        """
        self.path = root / "runs" / run_id
        self._log = log
        self._incidents_of_step: Counter[int] = Counter()
        self.has_failed = False
        """Something could not be written, which was said."""

    def incident_path(self, step: int) -> str:
        """Name the directory of a new incident, relative to the run; call once per incident, on every rank alike."""
        again = self._incidents_of_step[step]
        self._incidents_of_step[step] += 1
        return f"incidents/step_{step:08d}" + (f".{again}" if again else "")

    def withdraw(self, incident: str, step: int, name: str) -> None:
        """Take back what this rank wrote of an incident that turned out to be none; call it on every rank alike.

        Args:
            incident: what `incident_path` gave for the step.
            name: of this rank's file.
        """
        self._incidents_of_step[step] -= 1
        folder = self.path / incident
        # Not empty as long as other ranks' files are in it, or other incidents; the last rank takes it away.
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
            folder.rmdir()
            folder.parent.rmdir()

    def write(self, relative: str, record: Any) -> Path | None:
        """Write one record under a temporary name, then rename it, so that a reader never meets half a file.

        Args:
            relative: file name inside the run directory.
            record: a record of `records/`.
        Returns:
            The file, or None when it could not be written; the first failure was logged.
        """
        target = self.path / relative
        content = to_json(record)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(target) as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            self._complain(target, error)
            return None
        return target

    def write_postmortem(self, incident: str, postmortem: Postmortem) -> Path | None:
        """Write what one rank knows, cut to the size its file may have.

        Args:
            incident: what `incident_path` gave.
            postmortem: the complete one replaces the signal.
        """
        return self.write(f"{incident}/{postmortem_name(postmortem)}", fit(postmortem))

    def _complain(self, target: Path, error: OSError) -> None:
        if not self.has_failed:
            self.has_failed = True
            reason = error.strerror or error
            self._log(f"cannot write {target}: {reason}; training goes on, further files that fail are not mentioned")


def postmortem_name(postmortem: Postmortem) -> str:
    """Name of a post-mortem's file."""
    return rank_name(postmortem.coordinates, postmortem.sizes)


def rank_name(place: Coordinates, sizes: ParallelSizes) -> str:
    """Name of a rank's file: `rank00005_tp1pp1dp0.json`."""
    return f"rank{place.rank:05d}_{place.label(sizes)}.json"


def trace_name(place: Coordinates, sizes: ParallelSizes) -> str:
    """Name of a rank's trace: `trace00005_tp1pp1dp0.json`."""
    return f"trace{place.rank:05d}_{place.label(sizes)}.json"
