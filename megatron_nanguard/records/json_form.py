"""A record as JSON and back, checked against its type hints.

JSON knows neither NaN nor Inf, so a float that is not finite is written as a tagged value:

    {"name": "decoder.layers.3.mlp.linear_fc1.weight", "norm": {"$float": "nan"}, "first_index": [0, 17]}

A key whose name Python reserves is renamed with `field(metadata={"key": "from"})`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records import SCHEMA_VERSION

FLOAT_TAG = "$float"
TAGGED_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

Record = TypeVar("Record")
Decoder = Callable[[Any, str], Any]


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
        record: Record = _decoder(hint)(tree, "")
    except PostmortemError as error:
        raise PostmortemError(f"{prefix}{error}") from None
    return record


@functools.cache
def fields_of(cls: type) -> tuple[tuple[str, str, Any, bool], ...]:
    """The fields of a record: attribute, JSON key, resolved type hint, and whether the key may be missing."""
    hints = typing.get_type_hints(cls)
    return tuple(
        (
            field.name,
            field.metadata.get("key", field.name),
            hints[field.name],
            field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
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


@functools.cache
def _decoder(hint: Any) -> Decoder:
    """The function that turns parsed JSON into a value of one type hint; built once per hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        return _decode_float
    if hint in (int, str, bool):
        return functools.partial(_decode_scalar, hint)
    if origin in (typing.Union, types.UnionType):
        return functools.partial(_decode_optional, _decoder(_optional_of(hint)))
    if origin is typing.Literal:
        return functools.partial(_decode_choice, {value: value for value in arguments})
    if origin is tuple and arguments[-1] is Ellipsis:
        return functools.partial(_decode_list, _decoder(arguments[0]))
    if origin is tuple:
        return functools.partial(_decode_fixed, tuple(_decoder(argument) for argument in arguments))
    if origin is dict:
        return functools.partial(_decode_mapping, _decoder(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return functools.partial(_decode_choice, {member.value: member for member in hint})
    return _record_decoder(hint)


def _optional_of(hint: Any) -> Any:
    inner = [argument for argument in typing.get_args(hint) if argument is not types.NoneType]
    assert len(inner) == 1, f"a record knows no other union than X | None: {hint}"
    return inner[0]


def _record_decoder(cls: type) -> Decoder:
    fields = tuple((name, key, _decoder(hint), optional) for name, key, hint, optional in fields_of(cls))
    return functools.partial(_decode_record, cls, fields, frozenset(key for _, key, _, _ in fields))


def _decode_record(
    cls: type, fields: tuple[tuple[str, str, Decoder, bool], ...], known: frozenset[str], tree: Any, path: str
) -> Any:
    if not isinstance(tree, dict):
        raise _wrong(path, tree, f"an object ({cls.__name__})")
    version = tree.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise _wrong(
            _join(path, "schema_version"), version, f"{SCHEMA_VERSION}; read it with the version that wrote it"
        )
    if not known.issuperset(tree):
        key = min(set(tree) - known)
        raise _wrong(_join(path, key), tree[key], f"no such key in {cls.__name__}")
    values = {}
    for name, key, decode, optional in fields:
        if key in tree:
            values[name] = decode(tree[key], f"{path}.{key}" if path else key)
        elif not optional:
            raise PostmortemError(f"key {_join(path, key)} is missing in {cls.__name__}")
    return cls(**values)


def _decode_float(tree: Any, path: str) -> float:
    if type(tree) is float or type(tree) is int:
        return float(tree)
    if isinstance(tree, dict) and tree.keys() == {FLOAT_TAG} and tree[FLOAT_TAG] in TAGGED_FLOATS:
        return TAGGED_FLOATS[tree[FLOAT_TAG]]
    raise _wrong(path, tree, 'a number or {"$float": "nan"|"inf"|"-inf"}')


def _decode_scalar(cls: type, tree: Any, path: str) -> Any:
    if type(tree) is not cls:
        raise _wrong(path, tree, {int: "an integer", str: "a string", bool: "true or false"}[cls])
    return tree


def _decode_optional(decode: Decoder, tree: Any, path: str) -> Any:
    return None if tree is None else decode(tree, path)


def _decode_choice(choices: Mapping[str, Any], tree: Any, path: str) -> Any:
    if not isinstance(tree, str) or tree not in choices:
        raise _wrong(path, tree, "one of " + ", ".join(choices))
    return choices[tree]


def _decode_list(decode: Decoder, tree: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(tree, list):
        raise _wrong(path, tree, "a list")
    return tuple(decode(item, f"{path}[{index}]") for index, item in enumerate(tree))


def _decode_fixed(decoders: tuple[Decoder, ...], tree: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(tree, list) or len(tree) != len(decoders):
        raise _wrong(path, tree, f"a list of {len(decoders)} values")
    return tuple(decode(item, f"{path}[{index}]") for index, (decode, item) in enumerate(zip(decoders, tree)))  # noqa: B905


def _decode_mapping(decode: Decoder, tree: Any, path: str) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise _wrong(path, tree, "an object")
    return {key: decode(item, _join(path, key)) for key, item in tree.items()}


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _wrong(path: str, seen: Any, expected: str) -> PostmortemError:
    text = repr(seen)
    shown = text if len(text) <= 80 else text[:77] + "..."
    return PostmortemError(f"key {path or '(top)'} is {shown}, expected {expected}")
