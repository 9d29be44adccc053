"""What a cause means in this incident, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.records.causes import known_cause
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import Phrase, phrase

WRITES: Final = phrase(
    "{function} passes a plain number that is NaN ({operator}, {line}); {operator} itself is correct."
)
PASSED: Final = phrase("The code passes a plain number that is NaN to {operator}; {operator} itself is correct.")


def meaning(cause: str, origins: Sequence[Origin] = ()) -> str:
    """One plain sentence on a cause; empty for one that this version does not know.

    Args:
        cause: its code, such as "operator".
        origins: of the incident; an operator that only stores a NaN it is passed is told from one that is wrong.
    """
    if cause == "operator" and origins and origin_facts.bad_number(origins[0]):
        return _passed_on(origins[0])
    known = known_cause(cause)
    return "" if known is None else known.meaning


def _passed_on(origin: Origin) -> Phrase:
    line, _, function = (origin.function_line or origin.source_line or "").rpartition(" in ")
    if not line:
        return PASSED.format(operator=origin.operator)
    return WRITES.format(function=function, operator=origin.operator, line=line)
