"""Write a record as JSON and read it back, checked against its type hints; as text, or as one file of a run.

JSON knows neither NaN nor Inf, so a float that is not finite is written as a tagged value:

    {"name": "decoder.layers.3.mlp.linear_fc1.weight", "norm": {"$float": "nan"}, "first_index": [0, 17]}

A key whose name Python reserves is renamed with `field(metadata={"key": "from"})`. Whatever a file is that cannot be
read, an error names it in one sentence.
"""

from __future__ import annotations

import enum
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.json.decoding import Misfit, decoder_of, shown
from megatron_nanguard.records.json.fields import FLOAT_TAG, fields_of, map_leaves

TENSOR_SUFFIXES: Final = (".safetensors", ".pt")
LARGEST_BYTES: Final = 256 * 1024 * 1024
"""More than any file of a run has: the merged incident of a hundred thousand ranks stays below a tenth of it."""

Record = TypeVar("Record")


def to_json(record: Any) -> bytes:
    """Write one record as indented JSON.

    Args:
        record: an instance of a dataclass of this room.
    """
    return orjson.dumps(map_leaves(record, _plain, _as_object), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def from_json(cls: type[Record], data: bytes | Mapping[str, Any], *, source: str = "") -> Record:
    """Read one record; everything in it has the type its hint says.

    Args:
        cls: the dataclass to build.
        data: what `to_json` wrote, or the same already parsed.
        source: file the data came from, for the message of an error.
    Raises:
        PostmortemError: names the file, the path of the key, the value seen and what was expected.
    """
    prefix = f"{source}: " if source else ""
    try:
        tree = orjson.loads(data) if isinstance(data, bytes) else data
    except orjson.JSONDecodeError as error:
        raise PostmortemError(f"{prefix}not JSON ({error}); the file is damaged or was cut short") from error
    hint: Any = cls
    try:
        _check_version(tree)
        record: Record = decoder_of(hint)(tree)
    except PostmortemError as error:
        raise PostmortemError(f"{prefix}{error}") from None
    return record


def read_record(cls: type[Record], path: Path) -> Record:
    """Read one file.

    Args:
        cls: the dataclass that it holds.
        path: where it is.
    Raises:
        PostmortemError: it cannot be read, or is not what it should be.
    """
    name = str(path)
    return from_json(cls, read_bytes(path, name), source=name)


def write_record(target: Path, record: Any) -> None:
    """Write one file; a reader never sees half of it.

    Args:
        target: the file to write; its directory must be there.
        record: an instance of a dataclass of this room.
    Raises:
        OSError: the file cannot be written.
    """
    with atomic_write(target) as temporary:
        temporary.write_bytes(to_json(record))


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Give a temporary path beside the target; rename it to the target when the block has ended without an error.

    After an error the temporary file is gone and the target is what it was before. A file of tensors is for its owner
    alone, from its first byte on.

    Args:
        target: the file to write; its directory must be there.
    Yields:
        The path that the block has to write.
    Raises:
        OSError: the file cannot be renamed.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.suffix in TENSOR_SUFFIXES:
            temporary.unlink(missing_ok=True)
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read_bytes(path: Path, name: str) -> bytes:
    """Read a regular file of sensible size; a pipe or a device under the name of a file would never end.

    Args:
        path: where it is.
        name: how the message of an error names it.
    Raises:
        PostmortemError: it cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise PostmortemError(f"{name}: cannot be read: not a regular file")
            if facts.st_size > LARGEST_BYTES:
                raise PostmortemError(
                    f"{name}: cannot be read: {facts.st_size} bytes, expected at most {LARGEST_BYTES}; no file of a "
                    "run is as large"
                )
            # Up to the size that the file had when it was opened; it may be growing.
            with open(file, "rb", closefd=False) as stream:
                return stream.read(facts.st_size)
        finally:
            os.close(file)
    except OSError as error:
        raise PostmortemError(f"{name}: cannot be read: {error.strerror}") from error


def _check_version(tree: Any) -> None:
    """Check the version first: in a file of another version every other error would mislead."""
    version = tree.get("schema_version", SCHEMA_VERSION) if isinstance(tree, dict) else SCHEMA_VERSION
    if version != SCHEMA_VERSION:
        raise Misfit(
            f"is {shown(version)}, expected {SCHEMA_VERSION}; read it with the version that wrote it", "schema_version"
        )


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT_TAG: str(value)}
    return value


def _as_object(record: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The fields under their JSON keys."""
    cls: Any = type(record)
    return {key: values[name] for name, key, _, _ in fields_of(cls)}
