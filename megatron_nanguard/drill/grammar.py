"""Parse the text of `--nanguard-drill` into drills; an error points at the mistake.

nan@step=3,rank=5,mb=2,phase=backward,module=decoder.layers.3.mlp; inf@step=4,rank=*,phase=wgard,param=...
                                                                                          ^^^^^
'wgard' is no phase; allowed: forward, backward, wgrad, reduced
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from megatron_nanguard.drill.spec import Drill, Pattern, Phase
from megatron_nanguard.errors import DrillError

_Member = TypeVar("_Member", bound=enum.Enum)


@dataclass(frozen=True)
class _Span:
    """A part of the whole text, with its position for error messages."""

    whole: str
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.whole[self.start : self.end]

    def split(self, separator: str) -> list[_Span]:
        """Return the parts between separators, without surrounding blanks."""
        parts, start = [], self.start
        for piece in self.text.split(separator):
            left = len(piece) - len(piece.lstrip())
            parts.append(_Span(self.whole, start + left, start + left + len(piece.strip())))
            start += len(piece) + len(separator)
        return parts

    def error(self, message: str) -> DrillError:
        marks = "^" * max(1, self.end - self.start)
        return DrillError(f"{message}\n  {self.whole}\n  {' ' * self.start}{marks}")


def parse(text: str) -> tuple[Drill, ...]:
    """Read one or more drills, separated by `;`.

    Raises:
        DrillError: says what is allowed, and points at the mistake.
    """
    drills: list[Drill] = []
    for span in _Span(text, 0, len(text)).split(";"):
        drill = _parse_one(span)
        if drill in drills:
            raise span.error("the same drill a second time")
        drills.append(drill)
    return tuple(drills)


def _parse_one(span: _Span) -> Drill:
    pattern, *rest = span.split("@")
    if not span.text or len(rest) != 1:
        raise span.error("a drill reads PATTERN@KEY=VALUE,KEY=VALUE")
    chosen = _member(pattern, Pattern, "pattern")
    values, places = _parse_keys(rest[0])
    _check_keys(span, chosen, values, places)
    first_step, last_step = values["step"]
    return Drill(
        text=span.text,
        pattern=chosen,
        phase=values["phase"],
        first_step=first_step,
        last_step=last_step,
        ranks=values["rank"],
        target=values[values["phase"].target_key],
        microbatch=values.get("mb"),
        index=values.get("index"),
        once=values.get("once", False),
    )


def _parse_keys(span: _Span) -> tuple[dict[str, Any], dict[str, _Span]]:
    """Return the values by key, and the position of each."""
    values: dict[str, Any] = {}
    places: dict[str, _Span] = {}
    for part in span.split(","):
        key, *rest = part.split("=")
        if key.text not in READERS:
            raise key.error(f"{key.text!r} is no key; allowed: {', '.join(READERS)}")
        if key.text in values:
            raise part.error(f"{key.text!r} is given twice")
        if key.text == "once":
            if rest:
                raise part.error("'once' takes no value")
        elif len(rest) != 1 or not rest[0].text:
            raise part.error(f"{key.text!r} takes one value: {key.text}=VALUE")
        values[key.text] = READERS[key.text](rest[0] if rest else part)
        places[key.text] = part
    return values, places


def _check_keys(span: _Span, pattern: Pattern, values: Mapping[str, Any], places: Mapping[str, _Span]) -> None:
    """Refuse a missing key, or one that belongs to another phase or pattern."""
    for key in ("step", "rank", "phase"):
        if key not in values:
            raise span.error(f"{key!r} is missing; every drill needs step, rank, phase, and module or param")
    phase: Phase = values["phase"]
    if phase.target_key not in values:
        raise span.error(f"{phase.target_key!r} is missing; phase {phase.value} needs it")
    stray = {key: _phases_with(key) for key in ("module", "param") if key != phase.target_key}
    if phase.target_key == "param":
        stray["mb"] = f"{_phases_with('module')}: a main_grad is the sum over micro-batches"
    for key, phases in stray.items():
        if key in values:
            raise places[key].error(f"{key!r} does not go with phase {phase.value}, only with {phases}")
    if pattern is Pattern.STALE and "index" in values:
        raise places["index"].error("'index' does not go with pattern stale, which overwrites everything")


def _phases_with(target_key: str) -> str:
    return " and ".join(phase.value for phase in Phase if phase.target_key == target_key)


def _member(span: _Span, kind: type[_Member], noun: str) -> _Member:
    for member in kind:
        if member.value == span.text:
            return member
    raise span.error(f"{span.text!r} is no {noun}; allowed: {', '.join(member.value for member in kind)}")


_NUMBER: Final = "[0-9]{1,18}"
"""Python refuses to read a number of thousands of digits."""


def _number(span: _Span) -> int:
    if re.fullmatch(rf"{_NUMBER}", span.text) is None:
        raise span.error(f"{span.text!r} is no whole number from 0 on")
    return int(span.text)


def _steps(span: _Span) -> tuple[int, int | None]:
    if span.text == "*":
        return 1, None
    match = re.fullmatch(rf"({_NUMBER})(?:-({_NUMBER}))?", span.text)
    if match is None:
        raise span.error(f"{span.text!r} is no step; allowed: N, A-B or *")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last:
        raise span.error("steps count from 1, as in the training log, and A-B needs A <= B")
    return first, last


def _ranks(span: _Span) -> tuple[int, ...] | None:
    if span.text == "*":
        return None
    if re.fullmatch(rf"{_NUMBER}(\+{_NUMBER})*", span.text) is None:
        raise span.error(f"{span.text!r} is no rank; allowed: N, A+B+C or *")
    return tuple(sorted({int(rank) for rank in span.text.split("+")}))


def _name(span: _Span) -> str:
    if re.fullmatch(r"\w+(\.\w+)*", span.text) is None:
        raise span.error(f"{span.text!r} is no global name such as decoder.layers.3.mlp")
    return span.text


READERS: Final[Mapping[str, Callable[[_Span], Any]]] = {
    "step": _steps,
    "rank": _ranks,
    "mb": lambda span: None if span.text == "*" else _number(span),
    "phase": lambda span: _member(span, Phase, "phase"),
    "module": _name,
    "param": _name,
    "index": _number,
    "once": lambda span: True,
}
"""Every key, in the order in which an error lists them."""
