"""Who wrote the bytes a tensor holds: storage and byte range instead of tensor objects, so that views need no care."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Range = tuple[int, int]


class Writer(NamedTuple):
    """One output of one event."""

    event: int
    output: int


class _Written(NamedTuple):
    """A byte range that a writer filled; between the elements of a strided tensor older bytes are left."""

    start: int
    end: int
    writer: Writer
    dense: bool


class Lineage:
    """Last writers of every byte range of every storage.

    A weak reference per storage keeps its address from being used again, and so the key unique; it keeps no memory.
    """

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, list[_Written]]] = {}

    def write(self, tensor: Tensor, writer: Writer) -> None:
        """Note that the writer filled the tensor."""
        written = self._of(tensor)
        start, end = span(tensor)
        dense = end - start == tensor.numel() * tensor.element_size()
        if dense:
            written[:] = [old for old in written if not (start <= old.start and old.end <= end)]
        written.append(_Written(start, end, writer, dense))

    def read(self, tensor: Tensor) -> tuple[list[Writer], list[Range]]:
        """Return the writers whose bytes the tensor can hold, newest first, and the byte ranges nobody is known for."""
        left = [span(tensor)]
        writers: list[Writer] = []
        for start, end, writer, dense in reversed(self._of(tensor)):
            if any(start < stop and end > begin for begin, stop in left):
                writers.append(writer)
                if dense:
                    left = [part for piece in left for part in _without(piece, start, end)]
        return writers, left

    def is_known(self, tensor: Tensor) -> bool:
        """Whether anybody was seen writing into the tensor's storage."""
        return bool(self._of(tensor))

    def _of(self, tensor: Tensor) -> list[_Written]:
        storage = tensor.untyped_storage()
        entry = self._storages.get(storage._cdata)
        if entry is None:
            entry = (StorageWeakRef(storage), [])  # type: ignore[no-untyped-call]
            self._storages[storage._cdata] = entry
        return entry[1]


def span(tensor: Tensor) -> Range:
    """The bytes of its storage between the first and the last element of a tensor."""
    size, offset, numel = tensor.element_size(), int(tensor.storage_offset()), tensor.numel()
    if numel and not tensor.is_contiguous():
        numel = 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    return offset * size, (offset + numel) * size


def _without(piece: Range, start: int, end: int) -> list[Range]:
    begin, stop = piece
    return [(a, b) for a, b in ((begin, min(stop, start)), (max(begin, end), stop)) if a < b]
