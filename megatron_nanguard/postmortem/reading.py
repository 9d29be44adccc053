"""Find an incident under any path a person would give, and read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.merging import Exchanged, merge
from megatron_nanguard.records.incident import Incident, PolicyOutcome
from megatron_nanguard.records.json_form import from_json
from megatron_nanguard.records.postmortem import Postmortem
from megatron_nanguard.records.trace import RankTrace

MERGED_NAME = "incident.json"
RANK_FILES = "rank*_*.json"
TRACE_FILES = "trace*_*.json"
LOOKED_BACK = 16
"""Earlier incidents that are read."""


class Found(NamedTuple):
    """An incident and the directory it was read from."""

    incident: Incident
    directory: Path


def load_incident(path: Path) -> Found:
    """Read the newest incident under a path.

    Args:
        path: the directory of `--nanguard-dir`, of a run or of an incident, or an `incident.json`.
    Raises:
        PostmortemError: nothing is there, or it cannot be read; says what to give instead.
    """
    directory = find_incident(path)
    merged = directory / MERGED_NAME
    if merged.exists():
        return Found(from_json(Incident, _read(merged), source=str(merged)), directory)
    return Found(merge_directory(directory), directory)


def find_incident(path: Path) -> Path:
    """Find the directory of the newest incident under a path.

    Raises:
        PostmortemError: nothing is there; says what to give instead.
    """
    if path.is_file():
        if path.name != MERGED_NAME:
            raise PostmortemError(f"{path} is not an {MERGED_NAME}; give its directory")
        return path.parent
    if not path.is_dir():
        raise PostmortemError(f"{path} does not exist; give the directory of --nanguard-dir, a run or an incident")
    if (path / MERGED_NAME).exists() or any(path.glob(RANK_FILES)):
        return path
    if (path / "incidents").is_dir():
        return _newest_of_run(path)
    return _newest_of_runs(path)


def merge_directory(
    directory: Path, *, exchanged: Exchanged | None = None, policy: PolicyOutcome | None = None
) -> Incident:
    """Merge the files of all ranks in one incident directory; a file that cannot be read becomes a note.

    Args:
        directory: the incident.
        exchanged: the rank sets of the exchange; None to take them from the files.
        policy: what was done; None when nobody lived to tell.
    Raises:
        PostmortemError: no file of a rank can be read.
    """
    files = sorted(path.name for path in directory.glob(RANK_FILES))
    unreadable: list[str] = []  # filled while merge reads, and read by it after that
    try:
        return merge(
            _read_each(directory, files, unreadable), exchanged=exchanged, policy=policy, files=files, notes=unreadable
        )
    except PostmortemError as error:
        raise PostmortemError("; ".join([f"{directory}: {error}", *unreadable])) from None


def read_traces(directory: Path) -> tuple[RankTrace, ...]:
    """The traces that ranks left in one incident directory; one that cannot be read counts as missing."""
    traces = []
    for path in sorted(directory.glob(TRACE_FILES)):
        try:
            traces.append(from_json(RankTrace, _read(path), source=path.name))
        except PostmortemError:
            continue
    return tuple(traces)


def earlier_incidents(directory: Path) -> Iterator[Incident]:
    """The merged incidents of the run that stand before one, the last few, in order; what cannot be read is left out.

    Args:
        directory: of the incident.
    """
    before = sorted(path for path in directory.parent.glob("step_*") if path.name < directory.name)
    for path in before[-LOOKED_BACK:]:
        try:
            yield from_json(Incident, _read(path / MERGED_NAME), source=str(path / MERGED_NAME))
        except PostmortemError:
            continue


def _read_each(directory: Path, files: list[str], unreadable: list[str]) -> Iterator[Postmortem]:
    for name in files:
        try:
            yield from_json(Postmortem, _read(directory / name), source=name)
        except PostmortemError as error:
            unreadable.append(str(error))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PostmortemError(f"{path}: cannot be read: {error.strerror}") from error


def _newest_of_run(run: Path) -> Path:
    """The incident of the last step; names sort by step, then by number within the step."""
    incidents = sorted(path for path in (run / "incidents").glob("step_*") if path.is_dir())
    if not incidents:
        raise PostmortemError(f"{run} holds no incident")
    return incidents[-1]


def _newest_of_runs(root: Path) -> Path:
    """The newest incident of the newest run that has one; names of runs begin with their start time."""
    runs = sorted((root / "runs").glob("*/"), reverse=True)
    for run in runs:
        if any((run / "incidents").glob("step_*")):
            return _newest_of_run(run)
    if runs:
        raise PostmortemError(f"{root} holds {len(runs)} runs and no incident")
    raise PostmortemError(f"{root} is no directory of --nanguard-dir: it has neither runs/ nor incidents/")
