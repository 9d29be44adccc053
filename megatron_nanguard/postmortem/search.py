"""Find the directory of an incident, given the directory of all runs, of one run or of the incident.

DIR holds `runs/<start time>-<id>/incidents/step_00000123/`; the second incident of a step is `step_00000123.1`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from megatron_nanguard.errors import PostmortemError

MERGED_NAME: Final = "incident.json"
RANK_FILES: Final = re.compile(r"rank\d+_\w+\.json")
TRACE_FILES: Final = re.compile(r"trace\d+_\w+\.json")

LISTED_INCIDENTS: Final = 20
_INCIDENT = re.compile(r"step_(\d+)(?:\.(\d+))?")


def find_incident(path: Path, step: int | None = None) -> Path:
    """Find the directory of the newest incident under a path.

    Args:
        path: the directory of `--nanguard-dir`, of a run or of an incident, or an `incident.json`.
        step: find the newest incident of this step; None for the newest of all steps.
    Raises:
        PostmortemError: there is no such incident, or a directory cannot be read; the message lists the incidents that
            there are, or says which path to give instead.
    """
    try:
        return _find(path, step)
    except OSError as error:
        raise PostmortemError(f"{error.filename or path}: cannot be read: {error.strerror}") from error


def matching_names(directory: Path, pattern: re.Pattern[str]) -> list[str]:
    """List the names in a directory that fully match a pattern, sorted.

    Raises:
        OSError: the directory cannot be read (`Path.glob` would find nothing instead).
    """
    return sorted(filter(pattern.fullmatch, os.listdir(directory)))


def _find(path: Path, step: int | None) -> Path:
    if path.is_file():
        if path.name != MERGED_NAME:
            raise PostmortemError(f"{path} is not an {MERGED_NAME}; give its directory")
        return path.parent
    if not path.is_dir():
        what = "is no directory" if path.exists() else "does not exist"
        raise PostmortemError(f"{path} {what}; give the directory of --nanguard-dir, a run or an incident")
    if (path / MERGED_NAME).exists() or matching_names(path, RANK_FILES):
        return path
    found = incidents_in(path) if (path / "incidents").is_dir() else _incidents_of_all_runs(path)
    if not found:
        raise PostmortemError(f"{path} holds no incident")
    chosen = [incident for incident in found if step in (None, step_and_number(incident)[0])]
    if not chosen:
        raise PostmortemError(f"{path} holds no incident of step {step}; it holds {_listed(found)}")
    return next(filter(_holds_files, chosen), chosen[0])


def _holds_files(incident: Path) -> bool:
    """Whether there is something of an incident in a directory; False where it cannot be read."""
    try:
        return (incident / MERGED_NAME).exists() or bool(matching_names(incident, RANK_FILES))
    except OSError:
        return False


def incidents_in(run: Path) -> list[Path]:
    """List the directories of the incidents of a run, newest first; those behind symbolic links come last."""
    found = (path for path in _directories_in(run / "incidents") if _INCIDENT.fullmatch(path.name))
    return _links_last(sorted(found, key=step_and_number, reverse=True))


def step_and_number(incident: Path) -> tuple[int, int]:
    """Read the step, and the number within the step, from the name of a directory; (-1, 0) if it has another name."""
    match = _INCIDENT.fullmatch(incident.name)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, 0)


def _incidents_of_all_runs(root: Path) -> list[Path]:
    """List the incidents of all runs, those of the newest run first."""
    # The names of runs begin with their start time.
    runs = _links_last(sorted(_directories_in(root / "runs"), reverse=True))
    if not runs:
        raise PostmortemError(f"{root} is no directory of --nanguard-dir: it has neither runs/ nor incidents/")
    found = [incident for run in runs for incident in incidents_in(run)]
    if not found:
        raise PostmortemError(f"{root} holds {len(runs)} runs and no incident")
    return found


def _directories_in(parent: Path) -> list[Path]:
    """List the directories in a directory, in no order; none where it is missing."""
    return list(filter(_is_directory, parent.iterdir())) if parent.is_dir() else []


def _is_directory(path: Path) -> bool:
    """Whether this is a directory; False for a link that leads nowhere or where nobody may look."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _links_last(paths: list[Path]) -> list[Path]:
    """This package makes no links: what lies behind one, such as an incident of another run, must not hide others."""
    return sorted(paths, key=lambda path: path.is_symlink())


def _listed(incidents: list[Path]) -> str:
    """Name the incidents: "step 90 (20260102T120000Z-cd34), step 3 (20260101T120000Z-ab12)"."""
    shown = [f"step {step_and_number(path)[0]} ({path.parents[1].name})" for path in incidents[:LISTED_INCIDENTS]]
    more = len(incidents) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
