"""Read the post-mortems of the ranks, one after the other, from the directory of one incident.

Numbers of a file that size or index a table are checked; in a damaged file they can have any value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.search import RANK_FILES, matching_names
from megatron_nanguard.records.channel import MOST_RANKS
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.json.caching_reader import CachingReader
from megatron_nanguard.records.postmortem import Postmortem

Track = Callable[[Sequence[str], str], Iterable[str]]
"""Yields the given names of files and may show progress; the second argument says what the files are."""

LISTED_COMPLAINTS: Final = 16


def untracked(names: Sequence[str], what: str) -> Iterable[str]:
    """Yield the names and show no progress."""
    return names


class RankFiles:
    """The post-mortems in the directory of one incident; iterating reads them.

    Attributes:
        names: names of all files, including those that cannot be read.
    """

    def __init__(self, directory: Path, track: Track = untracked) -> None:
        """List the names of the rank files in the directory.

        Raises:
            PostmortemError: the directory cannot be read.
        """
        try:
            self.names = matching_names(directory, RANK_FILES)
        except OSError as error:
            raise PostmortemError(f"{directory}: cannot be read: {error.strerror}") from error
        self._directory = directory
        self._track = track
        self._reader = CachingReader(Postmortem)
        self._complaints: list[str] = []

    def __iter__(self) -> Iterator[Postmortem]:
        """Yield each post-mortem that can be read and is of the same incident as the first one; each rank once."""
        self._complaints = []
        first: Postmortem | None = None
        names: dict[int, str] = {}
        for name in self._track(self.names, "files of ranks"):
            try:
                postmortem = self._read(name)
                first = first or postmortem
                _check_belongs(name, postmortem, first, names)
            except PostmortemError as error:
                self._complaints.append(str(error))
                continue
            names[postmortem.coordinates.rank] = name
            yield postmortem

    @property
    def complaints(self) -> tuple[str, ...]:
        """Why files were left out, one sentence each; complete after the last file was read."""
        more = len(self._complaints) - LISTED_COMPLAINTS
        listed = self._complaints[:LISTED_COMPLAINTS]
        return (*listed, f"{more} more files of ranks were left out") if more > 0 else tuple(listed)

    def _read(self, name: str) -> Postmortem:
        postmortem = self._reader.read(self._directory / name, name)
        check_sizes(postmortem.sizes, name)
        check_place(postmortem.coordinates, postmortem.sizes, name)
        return postmortem


def _check_belongs(name: str, postmortem: Postmortem, first: Postmortem, names: dict[int, str]) -> None:
    # The sizes of single axes may differ: an encoder can have a tensor parallel size of its own.
    seen, expected = (
        f"step {each.step} of run {each.run_id} on {each.sizes.world} ranks" for each in (postmortem, first)
    )
    if seen != expected:
        raise PostmortemError(f"{name}: left out: of {seen}, while the files before it are of {expected}")
    rank = postmortem.coordinates.rank
    if rank in names:
        raise PostmortemError(f"{name}: left out: rank {rank} has {names[rank]} already")


def check_sizes(sizes: ParallelSizes, source: str) -> None:
    """Check that every parallel size, and the number of ranks, is at least 1 and at most MOST_RANKS.

    Raises:
        PostmortemError: names the file, the key, the value and the expected range.
    """
    for axis, size in vars(sizes).items():
        if not 1 <= size <= MOST_RANKS:
            raise PostmortemError(f"{source}: key sizes.{axis} is {size}, expected 1 to {MOST_RANKS}")
    product = math.prod((sizes.tp, sizes.cp, sizes.dp, sizes.pp))
    if product > MOST_RANKS:
        raise PostmortemError(f"{source}: tp, cp, dp and pp make {product} ranks, expected at most {MOST_RANKS}")


def check_place(place: Coordinates, sizes: ParallelSizes, source: str) -> None:
    """Check that a rank and its coordinates are inside the layout.

    Raises:
        PostmortemError: names the file, the key, the value and the expected range.
    """
    if not 0 <= place.rank < sizes.world:
        raise PostmortemError(f"{source}: key coordinates.rank is {place.rank}, expected 0 to {sizes.world - 1}")
    limits = vars(sizes)
    for axis, index in vars(place).items():
        if axis != "rank" and not 0 <= index < limits[axis]:
            raise PostmortemError(f"{source}: key coordinates.{axis} is {index}, expected 0 to {limits[axis] - 1}")
