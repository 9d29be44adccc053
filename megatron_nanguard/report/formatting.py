"""How numbers, places and causes read, the same in every section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from megatron_nanguard.diagnosis.joining.channel_names import cause_words
from megatron_nanguard.records.incident import RankedCause
from megatron_nanguard.records.phrase import Phrase, joined, opening, phrase
from megatron_nanguard.records.rank_words import rank_list

PATTERNS: Final = {"nan": "NaN", "inf": "Inf", "nan+inf": phrase("NaN and Inf"), "finite": phrase("finite")}

LIKELIHOODS: Final = (
    (0.8, phrase("very likely")),
    (0.5, phrase("likely")),
    (0.2, phrase("possible")),
    (0.0, phrase("unlikely")),
)
"""From which confidence on a word fits."""
UNDECIDED: Final = "undecided"
COUNTED: Final = {
    "rank": (phrase("{total} rank"), phrase("{total} ranks")),
    "row": (phrase("{total} row"), phrase("{total} rows")),
    "message": (phrase("{total} message"), phrase("{total} messages")),
    "parameter": (phrase("{total} parameter"), phrase("{total} parameters")),
    "more change": (phrase("{total} more change"), phrase("{total} more changes")),
    "more layer": (phrase("{total} more layer"), phrase("{total} more layers")),
    "more origin": (phrase("{total} more origin"), phrase("{total} more origins")),
    "more way": (phrase("{total} more way"), phrase("{total} more ways")),
    "further way": (phrase("{total} further way"), phrase("{total} further ways")),
}
"""One of it, and several."""
MORE: Final = phrase("... and {more}")


def number(value: float | None) -> str:
    """Six digits; "NaN" and "Inf" as they are, "-" for what is not known."""
    if value is None:
        return "-"
    return f"{value:.6g}".replace("nan", "NaN").replace("inf", "Inf")


def pattern_words(pattern: str) -> str:
    """What was seen: "NaN and Inf"; a pattern that this version does not know as it is."""
    return PATTERNS.get(pattern, pattern)


def count(value: int | None) -> str:
    """A count, "-" for what could not be counted."""
    return "-" if value is None else str(value)


def counted(total: int, noun: str) -> str:
    """A number and its noun: "1 parameter", "12 parameters"."""
    one, several = COUNTED[noun]
    return (one if total == 1 else several).format(total=total)


def which_ranks(ranks: Sequence[int]) -> str:
    """Ranks in a phrase of their own: "rank 4", "ranks 4, 5"."""
    if len(ranks) == 1:
        return phrase("rank {rank}", rank=ranks[0])
    return phrase("ranks {shown}", shown=rank_list(ranks))


def and_more(form: Phrase, names: Sequence[str], shown: int = 4) -> str:
    """The first few names, and how many there are beyond them."""
    told = joined(form, names[:shown])
    more = len(names) - shown
    return phrase("{names} and {more} more", names=told, more=more) if more > 0 else told


def as_sentence(words: str) -> str:
    """A note as a sentence among others."""
    return phrase("{sentence}.", sentence=opening(words))


def judged(cause: RankedCause) -> str:
    """A cause with how sure it is: "faulty operator (likely, 0.62)"; no number for what is undecided."""
    if cause.cause == UNDECIDED:
        return cause_words(UNDECIDED)
    likelihood = next(word for least, word in LIKELIHOODS if cause.confidence >= least)
    return phrase(
        "{cause} ({likelihood}, {confidence:.2f})",
        cause=cause_words(cause.cause),
        likelihood=likelihood,
        confidence=cause.confidence,
    )
