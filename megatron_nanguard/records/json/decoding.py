"""Turn parsed JSON into a record, with every value checked against its type hint.

One report reads ten thousand files, so that valid values must be cheap: a decoder is built once per hint and keeps no
path. An error collects the path of its value on the way out.
"""

from __future__ import annotations

import enum
import functools
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.printable import printable
from megatron_nanguard.records.json.fields import FLOAT_TAG, TAGGED_FLOATS, fields_of

Decoder = Callable[[Any], Any]

SCALARS: Final = {int: "an integer", str: "a string", bool: "true or false"}

LONGEST_SHOWN: Final = 80
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 4 * LONGEST_SHOWN


class Misfit(PostmortemError):
    """A value does not fit its hint.

    Attributes:
        words: what is wrong with it.
        path: keys and indices that lead to it, innermost first.
    """

    def __init__(self, words: str, *path: str | int) -> None:
        super().__init__(words)
        self.words = words
        self.path = list(path)

    def __str__(self) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{printable(step)}" for step in reversed(self.path))
        return f"key {''.join(steps).removeprefix('.') or '(top)'} {self.words}"


@functools.cache
def decoder_of(hint: Any) -> Decoder:
    """Build the function that turns parsed JSON into a value of one type hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        return _decode_float
    if hint in SCALARS:
        return functools.partial(_decode_scalar, hint)
    if origin in (typing.Union, types.UnionType):
        return functools.partial(_decode_optional, decoder_of(_optional_of(hint)))
    if origin is typing.Literal:
        return functools.partial(_decode_choice, {value: value for value in arguments})
    if origin is tuple and arguments[-1] is Ellipsis:
        return functools.partial(_decode_list, _exact_types(arguments[0]), decoder_of(arguments[0]))
    if origin is tuple:
        return functools.partial(_decode_fixed, tuple(decoder_of(argument) for argument in arguments))
    if origin is dict:
        return functools.partial(_decode_mapping, _exact_types(arguments[1]), decoder_of(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return functools.partial(_decode_choice, {member.value: member for member in hint})
    return RecordDecoder(hint)


def _exact_types(hint: Any) -> tuple[type, ...]:
    """The types whose values need no decoding; empty where a decoder must run."""
    if hint in SCALARS or hint is float:
        return (hint,)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return (*_exact_types(_optional_of(hint)), types.NoneType)
    return ()


def _optional_of(hint: Any) -> Any:
    inner = [argument for argument in typing.get_args(hint) if argument is not types.NoneType]
    assert len(inner) == 1, f"a record knows no other union than X | None: {hint}"
    return inner[0]


class RecordDecoder:
    """Turns a parsed JSON object into one kind of record."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self._fields = tuple((name, key, _exact_types(hint), decoder_of(hint)) for name, key, hint, _ in fields_of(cls))
        self._known = frozenset(key for _, key, _, _ in fields_of(cls))
        self._by_key = {key: (name, decode) for name, key, _, decode in self._fields}
        self._checks_itself = hasattr(cls, "__post_init__")

    def __call__(self, tree: Any) -> Any:
        """Decode a whole object."""
        if not isinstance(tree, dict):
            raise _wrong(tree, f"an object ({self.cls.__name__})")
        is_whole = tree.keys() == self._known
        if not is_whole and (unknown := tree.keys() - self._known):
            key = min(unknown)
            raise Misfit(f"is {shown(tree[key])}, expected no such key in {self.cls.__name__}", key)
        values = {}
        key = ""
        try:
            for name, key, exact, decode in self._fields:
                if is_whole or key in tree:
                    value = tree[key]
                    values[name] = value if type(value) in exact else decode(value)
        except Misfit as misfit:
            misfit.path.append(key)
            raise
        return self.build(values)

    def decode_one(self, key: str, value: Any) -> tuple[str, Any]:
        """Decode the value of one key; gives back the attribute and what it becomes.

        Raises:
            KeyError: the record has no such key.
        """
        name, decode = self._by_key[key]
        return name, decode(value)

    def build(self, values: dict[str, Any]) -> Any:
        """Make the record of decoded values by attribute."""
        if len(values) < len(self._fields):
            for name, key, _, may_be_missing in fields_of(self.cls):
                if not may_be_missing and name not in values:
                    raise Misfit(f"is missing in {self.cls.__name__}", key)
            return self.cls(**values)
        if self._checks_itself:
            return self.cls(**values)
        # A frozen __init__ sets one attribute after the other through object.__setattr__, half of the time of reading.
        record: Any = object.__new__(self.cls)
        record.__dict__.update(values)
        return record


def _decode_float(tree: Any) -> float:
    if type(tree) is float or type(tree) is int:
        return float(tree)
    if type(tree) is dict and tree.keys() == {FLOAT_TAG}:
        tag = tree[FLOAT_TAG]
        if type(tag) is str and tag in TAGGED_FLOATS:
            return TAGGED_FLOATS[tag]
    raise _wrong(tree, 'a number or {"$float": "nan"|"inf"|"-inf"}')


def _decode_scalar(cls: type, tree: Any) -> Any:
    if type(tree) is not cls:
        raise _wrong(tree, SCALARS[cls])
    return tree


def _decode_optional(decode: Decoder, tree: Any) -> Any:
    return None if tree is None else decode(tree)


def _decode_choice(choices: Mapping[str, Any], tree: Any) -> Any:
    if type(tree) is not str or tree not in choices:
        raise _wrong(tree, "one of " + ", ".join(choices))
    return choices[tree]


def _decode_list(exact: tuple[type, ...], decode: Decoder, tree: Any) -> tuple[Any, ...]:
    if type(tree) is not list:
        raise _wrong(tree, "a list")
    values = []
    try:
        for value in tree:
            values.append(value if type(value) in exact else decode(value))
    except Misfit as misfit:
        misfit.path.append(len(values))
        raise
    return tuple(values)


def _decode_fixed(decoders: tuple[Decoder, ...], tree: Any) -> tuple[Any, ...]:
    if type(tree) is not list or len(tree) != len(decoders):
        raise _wrong(tree, f"a list of {len(decoders)} values")
    return tuple(map(_decode_part, range(len(tree)), decoders, tree))


def _decode_mapping(exact: tuple[type, ...], decode: Decoder, tree: Any) -> dict[str, Any]:
    if type(tree) is not dict:
        raise _wrong(tree, "an object")
    return {key: value if type(value) in exact else _decode_part(key, decode, value) for key, value in tree.items()}


def _decode_part(place: str | int, decode: Decoder, value: Any) -> Any:
    """Decode what is under a key or an index; an error takes its place along."""
    try:
        return decode(value)
    except Misfit as misfit:
        misfit.path.append(place)
        raise


def _wrong(seen: Any, expected: str) -> Misfit:
    return Misfit(f"is {shown(seen)}, expected {expected}")


def shown(value: Any) -> str:
    """A value in an error message: short, however large or deeply nested it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."
