"""Which events wrote the bytes of a tensor: by storage and byte range, which a view shares with its base."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Range = tuple[int, int]

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class Writer(NamedTuple):
    """One output of one event."""

    event: int
    output: int


class _Written(NamedTuple):
    """A byte range that a writer wrote to.

    Attributes:
        start: first byte in the storage.
        end: byte after the last.
        writer: who wrote.
        dense: every byte was written; in a range that is not dense, older bytes are left between the elements.
    """

    start: int
    end: int
    writer: Writer
    dense: bool


class Lineage:
    """The last writers of every byte range of every storage.

    The key of a storage is its address. A weak reference keeps the address from being used again, but not the memory.
    """

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, list[_Written]]] = {}

    def write(self, tensor: Tensor, writer: Writer) -> None:
        """Note that the writer wrote all elements of the tensor."""
        written = self._of(tensor)
        start, end = span(tensor)
        dense = end - start == tensor.numel() * tensor.element_size()
        if dense:
            written[:] = [old for old in written if not (start <= old.start and old.end <= end)]
        written.append(_Written(start, end, writer, dense))

    def read(self, tensor: Tensor) -> tuple[list[Writer], list[Range]]:
        """Find the writers of a tensor.

        Returns:
            The writers whose bytes the tensor can hold, newest first, and the byte ranges that no event wrote.
        """
        left = [span(tensor)]
        writers: list[Writer] = []
        for start, end, writer, dense in reversed(self._of(tensor)):
            if any(start < stop and end > begin for begin, stop in left):
                writers.append(writer)
                if dense:
                    left = [part for piece in left for part in _without(piece, start, end)]
        return writers, left

    def is_known(self, tensor: Tensor) -> bool:
        """Whether an event has written to the storage of the tensor."""
        return bool(self._of(tensor))

    def _of(self, tensor: Tensor) -> list[_Written]:
        storage = tensor.untyped_storage()
        entry = self._storages.get(storage._cdata)
        if entry is None:
            entry = (StorageWeakRef(storage), [])  # type: ignore[no-untyped-call]
            self._storages[storage._cdata] = entry
        return entry[1]


def memory_of(tensor: Tensor) -> Tensor | None:
    """Return the strided tensor that holds the elements of a tensor; None where they cannot be looked at.

    That is the tensor itself, or the values of a sparse or nested one. What oneDNN holds in a layout of its own cannot
    be looked at, nor can a tensor whose storage was freed, as sharded data parallelism does with gathered weights.
    """
    if tensor.layout is torch.strided and not tensor.is_nested:
        if tensor.device.type == "meta" or (tensor.numel() and not tensor.untyped_storage().nbytes()):
            return None
        return tensor
    values = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return memory_of(values._values())
    if tensor.is_nested or tensor.layout in _COMPRESSED:
        return memory_of(values.values())
    return None


def span(tensor: Tensor) -> Range:
    """Return the byte range in its storage from the first to the last element of a tensor."""
    size, offset, numel = tensor.element_size(), int(tensor.storage_offset()), tensor.numel()
    if numel and not tensor.is_contiguous():
        numel = 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    return offset * size, (offset + numel) * size


def _without(piece: Range, start: int, end: int) -> list[Range]:
    begin, stop = piece
    return [(a, b) for a, b in ((begin, min(stop, start)), (max(begin, end), stop)) if a < b]
