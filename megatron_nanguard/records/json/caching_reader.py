"""Read many files of one kind that share large parts; a part that was decoded once is not decoded again.

Ten thousand replicas list the same parameters and the same messages. Files of this package have one key of the record
at the begin of a line indented by two blanks, so their text falls into parts without being parsed. A file in any other
form is read as a whole, and so is one that does not fit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import orjson

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.json.decoding import RecordDecoder
from megatron_nanguard.records.json.record_file import from_json, read_bytes

OPENING: Final = b'{\n  "'
CLOSING: Final = b"\n}\n"
BETWEEN: Final = b',\n  "'

WORTH_BYTES: Final = 512
"""Decoding a shorter part is faster than looking it up."""
KEPT_BYTES: Final = 64 * 1024 * 1024
"""Most text of parts that is remembered, for files that have nothing in common."""

Record = TypeVar("Record")


@contextmanager
def paused_collection() -> Iterator[None]:
    """Switch the garbage collector off: records hold no cycles, and among many it takes as long as reading them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class CachingReader(Generic[Record]):
    """Reads files of one kind of record; equal parts become one object."""

    def __init__(self, cls: type[Record]) -> None:
        self._cls = cls
        self._decoder = RecordDecoder(cls)
        self._seen: dict[bytes, tuple[str, Any]] = {}
        self._seen_bytes = 0

    def read(self, path: Path, source: str) -> Record:
        """Read one file.

        Args:
            path: where it is.
            source: how the message of an error names it.
        Raises:
            PostmortemError: it cannot be read, or is not what it should be.
        """
        data = read_bytes(path, source)
        try:
            return self._by_parts(data)
        except (PostmortemError, KeyError, ValueError):
            return from_json(self._cls, data, source=source)

    def _by_parts(self, data: bytes) -> Record:
        """Read a text in the form of this package.

        Raises:
            PostmortemError, KeyError, ValueError: it is not in this form, or not valid.
        """
        if not (data.startswith(OPENING) and data.endswith(CLOSING)):
            raise ValueError("not in the form of this package")
        parts = data[len(OPENING) : -len(CLOSING)].split(BETWEEN)
        values = dict(self._decode_long(part) for part in parts if len(part) >= WORTH_BYTES)
        short = orjson.loads(b'{"%b}' % BETWEEN.join(part for part in parts if len(part) < WORTH_BYTES))
        if len(short) + len(values) != len(parts) or short.get("schema_version") != SCHEMA_VERSION:
            raise ValueError("not one key in each part, or another version")
        values.update(self._decoder.decode_one(key, value) for key, value in short.items())
        record: Record = self._decoder.build(values)
        return record

    def _decode_long(self, part: bytes) -> tuple[str, Any]:
        known = self._seen.get(part)
        if known is None:
            ((key, value),) = orjson.loads(b'{"%b}' % part).items()
            known = self._decoder.decode_one(key, value)
            if self._seen_bytes < KEPT_BYTES:
                self._seen[part] = known
                self._seen_bytes += len(part)
        return known
