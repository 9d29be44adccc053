"""Read an incident: the file that the run merged, or else the files of its ranks, which are merged here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.merging.incident import ExchangedSets, merge
from megatron_nanguard.postmortem.rank_files import RankFiles, Track, check_sizes, untracked
from megatron_nanguard.postmortem.rank_table import RankTable
from megatron_nanguard.postmortem.search import MERGED_NAME, RANK_FILES, TRACE_FILES, find_incident, matching_names
from megatron_nanguard.records.incident import Incident, PolicyOutcome
from megatron_nanguard.records.json.caching_reader import CachingReader, paused_collection
from megatron_nanguard.records.json.record_file import read_record
from megatron_nanguard.records.postmortem import Postmortem
from megatron_nanguard.records.trace import RankTrace


class LoadedIncident(NamedTuple):
    """An incident that was read from disk.

    Attributes:
        incident: the merged incident; without causes where the run came to no verdict, and the caller has to.
        directory: where its files are.
        table: one row per rank, if the files of the ranks were read; None if only the merged file was.
    """

    incident: Incident
    directory: Path
    table: RankTable | None


def load_incident(path: Path, step: int | None = None, track: Track = untracked) -> LoadedIncident:
    """Find and read an incident.

    Args:
        path: the directory of `--nanguard-dir`, of a run or of an incident, or an `incident.json`.
        step: read the newest incident of this step; None for the newest of all steps.
        track: shows the progress of reading.
    Raises:
        PostmortemError: there is no such incident, or it cannot be read; the message says which path to give instead.
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
    exchanged: ExchangedSets | None = None,
    policy: PolicyOutcome | None = None,
    notes: Sequence[str] = (),
    track: Track = untracked,
    table: RankTable | None = None,
    known: Sequence[Postmortem] = (),
) -> Incident:
    """Merge the files of all ranks in one incident directory; a file that cannot be read becomes a note.

    Args:
        directory: directory of the incident.
        exchanged: the rank sets of the exchange; None to take them from the files.
        policy: what was done after the incident; None if the run ended before this was written.
        notes: notes of the caller, which are put before all others.
        track: shows the progress of reading.
        table: filled with a row for each rank.
        known: post-mortems that need not be read; the files of their ranks are left out, for they may be older.
    Raises:
        PostmortemError: no file of a rank can be read.
    """
    files = RankFiles(directory, track)
    ranks = {postmortem.coordinates.rank for postmortem in known}
    read = (postmortem for postmortem in files if postmortem.coordinates.rank not in ranks)
    try:
        merged = merge(
            _added_to(table, itertools.chain(known, read)), exchanged=exchanged, policy=policy, files=files.names
        )
    except PostmortemError as error:
        raise PostmortemError("; ".join([f"{directory}: {error}", *notes, *files.complaints])) from None
    return replace(merged, notes=(*notes, *files.complaints, *merged.notes))


def read_traces(directory: Path, track: Track = untracked) -> tuple[RankTrace, ...]:
    """Read the traces in one incident directory; one that cannot be read becomes a trace with `broken` set."""
    reader = CachingReader(RankTrace)
    with paused_collection():
        names = track(matching_names(directory, TRACE_FILES), "traces")
        return tuple(_read_trace(reader, directory, name) for name in names)


def _read_trace(reader: CachingReader[RankTrace], directory: Path, name: str) -> RankTrace:
    try:
        return reader.read(directory / name, name)
    except PostmortemError as error:
        rank, _, coords = name.removeprefix("trace").removesuffix(".json").partition("_")
        return RankTrace(rank=int(rank), coords=coords, microbatch=None, broken=str(error))


def _added_to(table: RankTable | None, postmortems: Iterable[Postmortem]) -> Iterator[Postmortem]:
    """Yield the post-mortems, and add each to the table on its way."""
    for postmortem in postmortems:
        if table is not None:
            table.add(postmortem)
        yield postmortem


def _load(directory: Path, track: Track) -> LoadedIncident:
    """Read what the run merged; merge the files of the ranks if it is missing, damaged or without a verdict."""
    path = directory / MERGED_NAME
    has_files = bool(matching_names(directory, RANK_FILES))
    if not path.exists():
        return _merge_now(directory, track)
    try:
        merged = read_record(Incident, path)
        check_incident(merged, str(path))
    except PostmortemError as error:
        if not has_files:
            raise
        return _merge_now(directory, track, notes=(str(error),))
    if merged.causes or not has_files:
        return LoadedIncident(merged, directory, None)
    # The run wrote this before its verdict; since then the files of the ranks may have got more content.
    exchanged = ExchangedSets(merged.ranks, merged.groups, merged.infected_groups)
    try:
        return _merge_now(directory, track, exchanged, merged.policy)
    except PostmortemError:
        return LoadedIncident(merged, directory, None)


def _merge_now(
    directory: Path,
    track: Track,
    exchanged: ExchangedSets | None = None,
    policy: PolicyOutcome | None = None,
    notes: Sequence[str] = (),
) -> LoadedIncident:
    table = RankTable()
    merged = merge_directory(directory, exchanged=exchanged, policy=policy, notes=notes, track=track, table=table)
    return LoadedIncident(merged, directory, table)


def check_incident(incident: Incident, source: str) -> None:
    """Check the layout of a merged incident, that its ranks are inside the layout, and that confidences are 0 to 1.

    Raises:
        PostmortemError: names the file, the key, the value and the expected range.
    """
    check_sizes(incident.sizes, source)
    sets = incident.ranks
    for name, ranks in vars(sets).items():
        outside = [rank for rank in ranks if not 0 <= rank < incident.sizes.world]
        if outside:
            raise PostmortemError(
                f"{source}: key ranks.{name} holds {outside[0]}, expected 0 to {incident.sizes.world - 1}"
            )
    for number, cause in enumerate(incident.causes):
        if not 0 <= cause.confidence <= 1:
            raise PostmortemError(f"{source}: key causes[{number}].confidence is {cause.confidence}, expected 0 to 1")
