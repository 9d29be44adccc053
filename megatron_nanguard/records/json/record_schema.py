"""The JSON Schema of a record, from its type hints; the docstring of the class describes every field."""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from typing import Any

from megatron_nanguard.records.json.fields import FLOAT_TAG, TAGGED_FLOATS, fields_of

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_FLOAT = {
    "description": "A number; NaN and Inf, which JSON lacks, as a tagged value.",
    "anyOf": [
        {"type": "number"},
        {
            "type": "object",
            "properties": {FLOAT_TAG: {"enum": list(TAGGED_FLOATS)}},
            "required": [FLOAT_TAG],
            "additionalProperties": False,
        },
    ],
}
_SCALARS = {int: "integer", str: "string", bool: "boolean"}


def schema_of(cls: type) -> dict[str, Any]:
    """Describe one record and every record inside it as a JSON Schema, draft 2020-12."""
    definitions: dict[str, Any] = {}
    top = _define(cls, definitions)
    return {"$schema": DRAFT, "title": cls.__name__, **top, "$defs": dict(sorted(definitions.items()))}


def documented_fields(cls: type) -> dict[str, str]:
    """The texts under `Attributes:` in the docstring of a record or an enum, by field or member."""
    _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _define(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    texts = documented_fields(cls)
    properties = {}
    for name, key, hint, _ in fields_of(cls):
        properties[key] = {"description": texts[name], **_describe(hint, definitions)}
    return {
        "description": _first_paragraph(cls),
        "type": "object",
        "properties": properties,
        "required": [key for _, key, _, optional in fields_of(cls) if not optional],
        "additionalProperties": False,
    }


def _describe(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_describe(argument, definitions) for argument in arguments]}
    if hint is types.NoneType:
        return {"type": "null"}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _describe(arguments[0], definitions)}
    if origin is tuple:
        items = [_describe(argument, definitions) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _describe(arguments[1], definitions)}
    return _refer(hint, definitions)


def _refer(hint: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Point to a definition of its own, made on first use: floats, enums and the records inside a record."""
    name = "Float" if hint is float else hint.__name__
    if name not in definitions:
        definitions[name] = {}  # holds the place, should a record refer to itself
        if hint is float:
            definitions[name] = _FLOAT
        elif issubclass(hint, enum.Enum):
            definitions[name] = _enumerate(hint)
        else:
            definitions[name] = _define(hint, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _enumerate(cls: type[enum.Enum]) -> dict[str, Any]:
    texts = documented_fields(cls)
    members = [{"const": member.value, "description": texts[member.name]} for member in cls]
    return {"description": _first_paragraph(cls), "oneOf": members}


def _first_paragraph(cls: type) -> str:
    return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
