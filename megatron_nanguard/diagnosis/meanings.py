"""What each cause means, in one line for a reader who never met its code: the texts are data in meanings*.json."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import Phrase, phrase

HERE: Final = Path(__file__).parent
FILES: Final = {"en": "meanings.json", "zh": "meanings.zh.json"}
WRITES: Final = phrase(
    "{function} passes a plain number that is NaN ({operator}, {line}); {operator} itself is correct."
)
PASSED: Final = phrase("The code passes a plain number that is NaN to {operator}; {operator} itself is correct.")


@functools.cache
def texts(lang: str = "en") -> dict[str, Phrase]:
    """All meanings by the code of the cause, in one language."""
    return {cause: Phrase(words) for cause, words in orjson.loads((HERE / FILES[lang]).read_bytes()).items()}


def meaning(cause: str, origins: Sequence[Origin] = ()) -> str:
    """One plain sentence on a cause; empty for one that this version does not know.

    Args:
        cause: its code, such as "operator".
        origins: of the incident; an operator that only stores a NaN it is passed is told from one that is wrong.
    """
    if cause == "operator" and origins and origin_facts.bad_number(origins[0]):
        return _passed_on(origins[0])
    return texts().get(cause, "")


def _passed_on(origin: Origin) -> Phrase:
    line, _, function = (origin.function_line or origin.source_line or "").rpartition(" in ")
    if not line:
        return PASSED.format(operator=origin.operator)
    return WRITES.format(function=function, operator=origin.operator, line=line)
