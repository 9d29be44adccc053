"""Texts for a reader: what is known of each pattern of advice, and what a cause means in this incident.

The advice is data in `advice*.json`; the meaning of a cause by itself is in `records/causes.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from megatron_nanguard.diagnosis.origin_facts import nan_argument
from megatron_nanguard.records.causes import Cause, known_cause
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import Phrase, phrase


class Advice(NamedTuple):
    """One pattern in plain words.

    Attributes:
        what: what it is.
        check: where to look.
        change: what helps.
    """

    what: str
    check: str
    change: str


@functools.cache
def advice_texts(lang: str = "en") -> dict[str, Advice]:
    """All advice by the name of its pattern, in one language: "en" or "zh"."""
    name = "advice.json" if lang == "en" else f"advice.{lang}.json"
    known = orjson.loads((Path(__file__).parent / name).read_bytes())
    return {pattern: Advice(**{key: Phrase(words) for key, words in text.items()}) for pattern, text in known.items()}


def meaning(code: str, origins: Sequence[Origin] = ()) -> str:
    """What a cause means, in one sentence; empty for a code of another version.

    Args:
        code: of the cause, such as "operator".
        origins: of the incident. An operator that only stores a NaN it was given is correct, and is said to be.
    """
    if code == Cause.OPERATOR and origins and nan_argument(origins[0]):
        return _only_stores(origins[0])
    cause = known_cause(code)
    return "" if cause is None else cause.meaning


def _only_stores(origin: Origin) -> Phrase:
    line, _, function = (origin.function_line or origin.source_line or "").rpartition(" in ")
    if not line:
        return phrase(
            "The code passes a plain number that is NaN to {operator}; {operator} itself is correct.",
            operator=origin.operator,
        )
    return phrase(
        "{function} passes a plain number that is NaN ({operator}, {line}); {operator} itself is correct.",
        function=function,
        operator=origin.operator,
        line=line,
    )
