"""Read an incident: as it was merged in the run, or from whatever its ranks left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.merging.incident import Exchanged, merge
from megatron_nanguard.postmortem.range_checks import check_incident
from megatron_nanguard.postmortem.rank_files import RankFiles, Track, untracked
from megatron_nanguard.postmortem.rank_table import RankTable
from megatron_nanguard.postmortem.search import MERGED_NAME, RANK_FILES, TRACE_FILES, find_incident, matching
from megatron_nanguard.records.incident import Incident, PolicyOutcome
from megatron_nanguard.records.json.caching_reader import CachingReader, paused_collection
from megatron_nanguard.records.json.record_file import read_record
from megatron_nanguard.records.postmortem import Postmortem
from megatron_nanguard.records.trace import RankTrace


class Found(NamedTuple):
    """An incident and the directory it was read from.

    Attributes:
        incident: the merged incident.
        directory: where its files are.
        is_judged: the run came to a verdict; otherwise traces and evidence are still to be weighed.
        table: what the files of the ranks tell, where they were read.
    """

    incident: Incident
    directory: Path
    is_judged: bool
    table: RankTable | None


def load_incident(path: Path, step: int | None = None, track: Track = untracked) -> Found:
    """Read an incident under a path.

    Args:
        path: the directory of `--nanguard-dir`, of a run or of an incident, or an `incident.json`.
        step: the newest one of this step; None for the newest of all.
        track: shows how many files were read.
    Raises:
        PostmortemError: nothing is there, or it cannot be read; says what to give instead.
    """
    directory = find_incident(path, step)
    try:
        found = _load(directory, track)
    except OSError as error:
        raise PostmortemError(f"{error.filename or directory}: cannot be read: {error.strerror}") from error
    if step not in (None, found.incident.step):
        raise PostmortemError(f"{found.directory} is the incident of step {found.incident.step}, not of step {step}")
    return found


def merge_directory(
    directory: Path,
    *,
    exchanged: Exchanged | None = None,
    policy: PolicyOutcome | None = None,
    notes: Sequence[str] = (),
    track: Track = untracked,
    table: RankTable | None = None,
) -> Incident:
    """Merge the files of all ranks in one incident directory; a file that cannot be read becomes a note.

    Args:
        directory: the incident.
        exchanged: the rank sets of the exchange; None to take them from the files.
        policy: what was done; None when nobody lived to tell.
        notes: what else a reader should know.
        track: shows how many files were read.
        table: takes what a picture tells of each rank.
    Raises:
        PostmortemError: no file of a rank can be read.
    """
    files = RankFiles(directory, track)
    try:
        merged = merge(_noted(files, table), exchanged=exchanged, policy=policy, files=files.names)
    except PostmortemError as error:
        raise PostmortemError("; ".join([f"{directory}: {error}", *notes, *files.complaints])) from None
    return replace(merged, notes=(*notes, *files.complaints, *merged.notes))


def read_traces(directory: Path, track: Track = untracked) -> tuple[RankTrace, ...]:
    """The traces that ranks left in one incident directory; one that cannot be read is a broken one of its rank."""
    reader = CachingReader(RankTrace)
    with paused_collection():
        return tuple(_read_trace(reader, directory, name) for name in track(matching(directory, TRACE_FILES), "traces"))


def _read_trace(reader: CachingReader[RankTrace], directory: Path, name: str) -> RankTrace:
    try:
        return reader.read(directory / name, name)
    except PostmortemError as error:
        rank, _, coords = name.removeprefix("trace").removesuffix(".json").partition("_")
        return RankTrace(rank=int(rank), coords=coords, microbatch=None, broken=str(error))


def _noted(postmortems: Iterable[Postmortem], table: RankTable | None) -> Iterator[Postmortem]:
    for postmortem in postmortems:
        if table is not None:
            table.add(postmortem)
        yield postmortem


def _load(directory: Path, track: Track) -> Found:
    """What the run merged; where it did not come that far, or the file is damaged, the files of the ranks."""
    path = directory / MERGED_NAME
    has_files = bool(matching(directory, RANK_FILES))
    if not path.exists():
        return _merge_now(directory, track)
    try:
        merged = _read_merged(path)
    except PostmortemError as error:
        if not has_files:
            raise
        return _merge_now(directory, track, notes=(str(error),))
    if merged.causes or not has_files:
        return Found(merged, directory, bool(merged.causes), None)
    # What was written before the run came to a verdict may be less than the files of the ranks say by now.
    exchanged = Exchanged(merged.ranks, merged.groups, merged.infected_groups)
    try:
        return _merge_now(directory, track, exchanged, merged.policy)
    except PostmortemError:
        return Found(merged, directory, False, None)


def _read_merged(path: Path) -> Incident:
    merged = read_record(Incident, path)
    check_incident(merged, str(path))
    return merged


def _merge_now(
    directory: Path,
    track: Track,
    exchanged: Exchanged | None = None,
    policy: PolicyOutcome | None = None,
    notes: Sequence[str] = (),
) -> Found:
    table = RankTable()
    merged = merge_directory(directory, exchanged=exchanged, policy=policy, notes=notes, track=track, table=table)
    return Found(merged, directory, False, table)
