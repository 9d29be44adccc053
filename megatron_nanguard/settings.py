"""Every option in one place: name, default, meaning, and how its text is read.

The command line flag is ``--nanguard-NAME``, the environment variable ``NANGUARD_NAME``; the command line wins.
``--nanguard`` or ``NANGUARD=1`` switches the guard on, ``NANGUARD=0`` switches it off in any case.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from megatron_nanguard.errors import SettingsError
from megatron_nanguard.printable import printable

PREFIX = "nanguard"

SAVES_CALLS = frozenset({"op", "step", "full"})
"""Levels of --nanguard-capture that save the inputs of the failing call."""
SAVES_STEP = frozenset({"step", "full"})
"""Levels of --nanguard-capture that save the micro-batches of the step."""


MOST_DIGITS = 18
"""Of a whole number; Python refuses to read one of thousands of digits."""
LONGEST_SHOWN = 80
OTHER_VARIABLES = ("NANGUARD_LANG", "NANGUARD_REQUIRE_BROWSER")
"""Variables that are no options of a run: the language of a report, and a switch of the tests."""
TEST_VARIABLES = "NANGUARD_TEST_"


def _shown(text: str) -> str:
    """A value in an error message, cut where it is long."""
    return repr(text) if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]!r}... ({len(text)} characters)"


def _whole_number(text: str) -> int:
    """A number of at least 1; 0 for everything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else 0


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 86400.0:
        raise SettingsError(f"{_shown(text)} is not a number of seconds between 1 and 86400")
    return value


def _count(text: str) -> int:
    value = _whole_number(text)
    if value < 1:
        raise SettingsError(f"{_shown(text)} is not a whole number of at least 1")
    return value


def _ordered_pair(separator: str, expected: str) -> Callable[[str], tuple[int, int]]:
    def read(text: str) -> tuple[int, int]:
        first, found, last = text.partition(separator)
        pair = _whole_number(first), _whole_number(last)
        if not found or not 1 <= pair[0] <= pair[1]:
            raise SettingsError(f"{_shown(text)} is not {expected}")
        return pair

    return read


_budget = _ordered_pair("/", "N/M with 1 <= N <= M, for example 5/100")
_steps = _ordered_pair(":", "A:B with 1 <= A <= B, both steps included, for example 120:125")


def _path(text: str) -> str:
    if not text.strip():
        raise SettingsError("an empty path; give a directory or leave the option out")
    return text


def _drill(text: str) -> str:
    """Refuse an empty text only; `drill/` parses the rest."""
    if not text.strip():
        raise SettingsError("an empty drill; plant one or leave the option out")
    return text


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise SettingsError(f"{_shown(text)} is not a regular expression: {error}") from None
    if not text:
        raise SettingsError("an empty expression; '.' watches every module")
    return text


def _magnitude(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise SettingsError(f"{_shown(text)} is not a finite number above 0, for example 1e4")
    return value


def _yes_or_no(text: str) -> bool:
    if text not in ("0", "1"):
        raise SettingsError(f"{_shown(text)} is not 0 or 1")
    return text == "1"


def _option(default: Any, read: Callable[[str], Any], metavar: str | None, meaning: str) -> Any:
    return field(default=default, metadata={"read": read, "metavar": metavar, "help": meaning})


def _choice(default: str, allowed: Sequence[str], meaning: str) -> Any:
    def read(text: str) -> str:
        if text not in allowed:
            raise SettingsError(f"{_shown(text)} is not one of {', '.join(allowed)}")
        return text

    return _option(default, read, f"{{{','.join(allowed)}}}", meaning)


@dataclass(frozen=True)
class Settings:
    """The options of one process. ``from_texts`` reads their text forms and raises SettingsError for a bad one."""

    on: bool = False
    dir: str | None = _option(
        None, _path, "DIR", "where incidents are written (default: nanguard/ in the --save directory, else ./nanguard)"
    )
    on_nonfinite: str = _choice(
        "abort",
        ("abort", "skip", "continue"),
        "after an incident is written: leave with exit code 65 on all ranks, skip the step, or go on (default abort)",
    )
    max_skips: tuple[int, int] = _option(
        (5, 100), _budget, "N/M", "policy skip turns into abort at more than N skips in M steps (default 5/100)"
    )
    deadline: float = _option(
        120.0, _seconds, "SECONDS", "longest wait for other ranks at the handshake and in an incident (default 120)"
    )
    strict: bool = _option(False, _yes_or_no, None, "exit where the run would go on unguarded")
    norms: str = _choice(
        "param",
        ("param", "bucket"),
        "gradient norms before the reduction per parameter, or one per bucket (cheaper, less detail) (default param)",
    )
    replay: str = _choice(
        "auto",
        ("auto", "off"),
        "auto: run a failing step again in place, traced, and name the operator; off: no replay (default auto)",
    )
    scaler_skips: int = _option(
        8, _count, "N", "fp16: the Nth step in a row skipped by the loss scaler is an incident (default 8)"
    )
    capture: str = _choice(
        "op",
        ("none", "ids", "op", "step", "full"),
        "what an incident saves besides its report: nothing; digests of the batch and the failing call; also that call "
        "with its inputs; also the step's micro-batches and random states; also model and optimizer, so that "
        "nanguard reload can run the step again (default op)",
    )
    drill: str | None = _option(
        None,
        _drill,
        "SPEC",
        "plant a fault to test this set-up, e.g. 'nan@step=3,rank=5,phase=backward,module=decoder.layers.3.mlp' "
        "(a pattern with a sign needs --nanguard-drill='-inf@...')",
    )
    watch: str | None = _option(
        None,
        _regex,
        "REGEX",
        "look at each forward and backward of the modules whose global name matches; the first bad values per rank are "
        "saved under watch/ with inputs, outputs, gradients and module state (one host read per look)",
    )
    watch_steps: tuple[int, int] | None = _option(
        None, _steps, "A:B", "watch in steps A to B alone, both included (default: until the first hit)"
    )
    watch_above: float | None = _option(
        None, _magnitude, "X", "what is larger in magnitude counts as bad too (gradients as scaled by the loss scale)"
    )

    @classmethod
    def from_texts(cls, on: bool, given: Mapping[str, str | bool | None], environ: Mapping[str, str]) -> Settings:
        """Read command line texts (None where absent), and the environment for the options that are absent.

        Raises:
            SettingsError: names the flag or the variable, the value, and the values allowed.
        """
        values: dict[str, Any] = {}
        for option in OPTIONS:
            text, source = given.get(option.name), flag_of(option.name)
            if text is None or text is False:
                text, source = environ.get(variable_of(option.name)), variable_of(option.name)
            try:
                if text is not None:
                    values[option.name] = text is True or option.metadata["read"](text)
            except SettingsError as error:
                raise SettingsError(f"{source}: {error}") from None
        switched = environ.get("NANGUARD")
        if switched not in (None, "", "0", "1"):
            raise SettingsError(f"NANGUARD: {switched!r} is not 0 or 1")
        settings = cls(on=switched != "0" and (on or switched == "1"), **values)
        if switched != "0":
            settings.check()
        if settings.on:
            _refuse_unknown_variables(environ)
        return settings

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            SettingsError: names both flags.
        """
        if self.drill and self.on_nonfinite == "continue":
            raise SettingsError(
                "--nanguard-drill with --nanguard-on-nonfinite continue trains on a planted fault; use abort or skip"
            )
        for option in ("drill", "watch"):
            if getattr(self, option) and not self.on:
                raise SettingsError(f"{flag_of(option)} needs --nanguard")
        if self.capture in SAVES_STEP and self.replay == "off":
            raise SettingsError(
                f"--nanguard-capture {self.capture} needs --nanguard-replay auto, for which the step's data is kept"
            )
        for option in ("watch_steps", "watch_above"):
            if getattr(self, option) is not None and self.watch is None:
                raise SettingsError(f"{flag_of(option)} needs --nanguard-watch")

    def digest(self) -> str:
        """Twelve hex digits; equal on two ranks if and only if their options are equal."""
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).hexdigest()[:12]


OPTIONS = tuple(f for f in dataclasses.fields(Settings) if f.metadata)


def flag_of(name: str) -> str:
    """``on_nonfinite`` -> ``--nanguard-on-nonfinite``."""
    return f"--{PREFIX}-{name.replace('_', '-')}"


def variable_of(name: str) -> str:
    """``on_nonfinite`` -> ``NANGUARD_ON_NONFINITE``."""
    return f"{PREFIX}_{name}".upper()


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """A misspelt variable would leave its option at the default.

    Raises:
        SettingsError: names the variable and the one that may be meant.
    """
    known = ("NANGUARD", *(variable_of(option.name) for option in OPTIONS), *OTHER_VARIABLES)
    for name in sorted(environ):
        if name.startswith("NANGUARD") and name not in known and not name.startswith(TEST_VARIABLES):
            meant = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            hint = f"; {meant[0]} is meant?" if meant else f"; there are {', '.join(known)}"
            raise SettingsError(f"{printable(name)} in the environment is no variable of nanguard{hint}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser as texts, so that a checkpoint can pickle the parsed arguments."""
    group = parser.add_argument_group(title="nanguard", description="non-finite gradients: found, named, written down")
    group.add_argument(f"--{PREFIX}", action="store_true", help="watch every step for non-finite gradients and losses")
    for option in OPTIONS:
        metavar = option.metadata["metavar"]
        form: dict[str, Any] = {"action": "store_true"} if metavar is None else {"metavar": metavar}
        group.add_argument(flag_of(option.name), dest=f"{PREFIX}_{option.name}", help=option.metadata["help"], **form)


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Settings of a parsed command line and of the environment.

    Raises:
        SettingsError: see ``Settings.from_texts``.
    """
    given = {option.name: getattr(namespace, f"{PREFIX}_{option.name}", None) for option in OPTIONS}
    return Settings.from_texts(bool(getattr(namespace, PREFIX, False)), given, environ)


def without_ours(words: Sequence[str]) -> list[str]:
    """Remove the options of this package from a command line."""
    takes_value = {flag_of(option.name) for option in OPTIONS if option.metadata["metavar"] is not None}
    left, rest = [], iter(words)
    for word in rest:
        if word in takes_value:
            next(rest, None)
        elif word != f"--{PREFIX}" and not word.startswith(f"--{PREFIX}-"):
            left.append(word)
    return left
