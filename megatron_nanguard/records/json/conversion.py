"""Write a record as JSON and read it back, checked against its type hints.

JSON knows neither NaN nor Inf, so a float that is not finite is written as a tagged value:

    {"name": "decoder.layers.3.mlp.linear_fc1.weight", "norm": {"$float": "nan"}, "first_index": [0, 17]}

A key whose name Python reserves is renamed with `field(metadata={"key": "from"})`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.json.decoding import Misfit, decoder_of, shown
from megatron_nanguard.records.json.fields import FLOAT_TAG, fields_of
from megatron_nanguard.records.nested import map_leaves

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
