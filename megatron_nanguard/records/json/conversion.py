"""A record as JSON and back, checked against its type hints.

JSON knows neither NaN nor Inf, so a float that is not finite is written as a tagged value:

    {"name": "decoder.layers.3.mlp.linear_fc1.weight", "norm": {"$float": "nan"}, "first_index": [0, 17]}

A key whose name Python reserves is renamed with `field(metadata={"key": "from"})`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.json.decoding import Misfit, decoder_of, shown
from megatron_nanguard.records.json.fields import FLOAT_TAG, fields_of

Record = TypeVar("Record")


def to_json(record: Any) -> bytes:
    """Write one record as indented JSON.

    Args:
        record: an instance of a dataclass of this room.
    """
    return orjson.dumps(_plain(record), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


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
    """The version comes first: of a file in another form every other complaint would mislead."""
    version = tree.get("schema_version", SCHEMA_VERSION) if isinstance(tree, dict) else SCHEMA_VERSION
    if version != SCHEMA_VERSION:
        raise Misfit(
            f"is {shown(version)}, expected {SCHEMA_VERSION}; read it with the version that wrote it", "schema_version"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else {FLOAT_TAG: str(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        cls: Any = type(value)
        return {key: _plain(getattr(value, name)) for name, key, _, _ in fields_of(cls)}
    return value
