"""Write numbers, counts, ranks and causes in the same way in every section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from megatron_nanguard.records.causes import Cause, RankedCause, cause_words
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import Phrase, joined, opening, phrase, rank_list

PATTERNS: Final = {"nan": "NaN", "inf": "Inf", "nan+inf": phrase("NaN and Inf"), "finite": phrase("finite")}

LIKELIHOODS: Final = (
    (0.8, phrase("very likely")),
    (0.5, phrase("likely")),
    (0.2, phrase("possible")),
    (0.0, phrase("unlikely")),
)
"""The lowest confidence of each word."""
COUNTED: Final = {
    "rank": (phrase("{total} rank"), phrase("{total} ranks")),
    "row": (phrase("{total} row"), phrase("{total} rows")),
    "message": (phrase("{total} message"), phrase("{total} messages")),
    "parameter": (phrase("{total} parameter"), phrase("{total} parameters")),
    "more change": (phrase("{total} more change"), phrase("{total} more changes")),
    "more layer": (phrase("{total} more layer"), phrase("{total} more layers")),
    "more origin": (phrase("{total} more origin"), phrase("{total} more origins")),
    "more transfer": (phrase("{total} more transfer"), phrase("{total} more transfers")),
    "further transfer": (phrase("{total} further transfer"), phrase("{total} further transfers")),
}
"""The singular and the plural of each noun."""


def number(value: float | None) -> str:
    """Write a number with six digits, NaN and Inf by name, and "-" for an unknown one."""
    if value is None:
        return "-"
    return f"{value:.6g}".replace("nan", "NaN").replace("inf", "Inf")


def pattern_words(pattern: str) -> str:
    """Write the kind of bad values: "NaN and Inf"; a pattern of another version is left as it is."""
    return PATTERNS.get(pattern, pattern)


def count(value: int | None) -> str:
    """Write a count, and "-" for an unknown one."""
    return "-" if value is None else str(value)


def counted(total: int, noun: str) -> str:
    """Write a number with its noun, a key of COUNTED: "1 parameter", "12 parameters"."""
    one, several = COUNTED[noun]
    return (one if total == 1 else several).format(total=total)


def more_note(left_out: int, noun: str) -> tuple[str, ...]:
    """Return the note on what a section leaves out: "... and 2 more origins"; empty where nothing is left out."""
    return (phrase("... and {more}", more=counted(left_out, noun)),) if left_out > 0 else ()


def which_ranks(ranks: Sequence[int]) -> str:
    """Write ranks with their noun: "rank 4", "ranks 4, 5"."""
    if len(ranks) == 1:
        return phrase("rank {rank}", rank=ranks[0])
    return phrase("ranks {shown}", shown=rank_list(ranks))


def and_more(form: Phrase, names: Sequence[str], shown: int = 4) -> str:
    """Join the first names with a separator, and count the others: "dp 0; dp 1 and 3 more"."""
    first, more = joined(form, names[:shown]), len(names) - shown
    return phrase("{names} and {more} more", names=first, more=more) if more > 0 else first


def as_sentence(words: str) -> str:
    """Write a note as a sentence, with a capital and a full stop."""
    return phrase("{sentence}.", sentence=opening(words))


def call_words(origin: Origin) -> str:
    """Write the call of an origin: "log in decoder.layers.3.mlp"."""
    if not origin.module:
        return origin.operator
    return phrase("{operator} in {module}", operator=origin.operator, module=origin.module)


def judged(cause: RankedCause) -> str:
    """Write a cause with its confidence: "faulty operator (likely, 0.62)"; an undecided one without confidence."""
    if cause.cause == Cause.UNDECIDED:
        return Cause.UNDECIDED.words
    likelihood = next(word for least, word in LIKELIHOODS if cause.confidence >= least)
    return phrase(
        "{cause} ({likelihood}, {confidence:.2f})",
        cause=cause_words(cause.cause),
        likelihood=likelihood,
        confidence=cause.confidence,
    )
