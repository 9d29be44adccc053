"""Find an incident under any path a person would give.

DIR holds `runs/<start time>-<id>/incidents/step_00000123/`; a second incident of a step gets `.1`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from megatron_nanguard.errors import PostmortemError

MERGED_NAME: Final = "incident.json"
RANK_FILES: Final = re.compile(r"rank\d+_\w+\.json")
TRACE_FILES: Final = re.compile(r"trace\d+_\w+\.json")

LISTED_INCIDENTS = 20
_INCIDENT = re.compile(r"step_(\d+)(?:\.(\d+))?")


def find_incident(path: Path, step: int | None = None) -> Path:
    """Find the directory of the newest incident under a path.

    Args:
        path: the directory of `--nanguard-dir`, of a run or of an incident, or an `incident.json`.
        step: the newest one of this step; None for the newest of all.
    Raises:
        PostmortemError: it is not there, or a directory cannot be read; says what there is, or what to give instead.
    """
    try:
        return _find(path, step)
    except OSError as error:
        raise PostmortemError(f"{error.filename or path}: cannot be read: {error.strerror}") from error


def matching(directory: Path, pattern: re.Pattern[str]) -> list[str]:
    """Names of a directory that fit a pattern, in order.

    Raises:
        OSError: it cannot be read; `Path.glob` would call it empty.
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
    if (path / MERGED_NAME).exists() or matching(path, RANK_FILES):
        return path
    found = incidents_of_run(path) if (path / "incidents").is_dir() else _incidents_of_runs(path)
    chosen = [incident for incident in found if step in (None, order_of(incident)[0])]
    if not chosen:
        raise PostmortemError(f"{path} holds no incident of step {step}; it holds {_listed(found)}")
    return chosen[0]


def incidents_of_run(run: Path) -> list[Path]:
    """The incidents of a run, newest first.

    Raises:
        PostmortemError: it holds none.
    """
    found = incidents_in(run)
    if not found:
        raise PostmortemError(f"{run} holds no incident")
    return found


def incidents_in(run: Path) -> list[Path]:
    """The incidents of a run, newest first, if it holds any."""
    directory = run / "incidents"
    if not directory.is_dir():
        return []
    found = [directory / name for name in os.listdir(directory) if _INCIDENT.fullmatch(name)]
    return sorted((path for path in found if path.is_dir()), key=order_of, reverse=True)


def order_of(incident: Path) -> tuple[int, int]:
    """Step, then number within the step; a directory under another name comes before all."""
    match = _INCIDENT.fullmatch(incident.name)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, 0)


def _incidents_of_runs(root: Path) -> list[Path]:
    """The incidents of all runs, those of the newest run first; names of runs begin with their start time."""
    runs = list(_runs(root))
    if not runs:
        raise PostmortemError(f"{root} is no directory of --nanguard-dir: it has neither runs/ nor incidents/")
    found = [incident for run in runs for incident in incidents_in(run)]
    if not found:
        raise PostmortemError(f"{root} holds {len(runs)} runs and no incident")
    return found


def _runs(root: Path) -> Iterator[Path]:
    directory = root / "runs"
    if directory.is_dir():
        yield from (run for name in sorted(os.listdir(directory), reverse=True) if (run := directory / name).is_dir())


def _listed(incidents: list[Path]) -> str:
    """What there is to choose from: "step 90 (20260102T120000Z-cd34), step 3 (20260101T120000Z-ab12)"."""
    shown = [f"step {order_of(path)[0]} ({path.parents[1].name})" for path in incidents[:LISTED_INCIDENTS]]
    more = len(incidents) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
