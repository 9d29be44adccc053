"""A sentence that keeps how it was put together, so that a report can translate it.

    fact = phrase("finite values in, {pattern} out: {origin}", pattern="nan", origin=phrase("log in {module}", ...))
    fact               "finite values in, nan out: log in decoder.layers.3.mlp"
    fact.template      "finite values in, {pattern} out: {origin}"
    fact.values        {"pattern": "nan", "origin": "log in decoder.layers.3.mlp"}, the latter a phrase again

Everywhere else a phrase is its English text. A record holds `phrases` beside its texts: how they were put together.
`name_ranks` and `rank_list` make the phrases for sets of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from string import Formatter
from typing import Any

from megatron_nanguard.records.json.fields import leaves_of


@dataclass(frozen=True)
class Phrasing:
    """How a text was put together.

    Attributes:
        template: the English sentence with names in braces.
        values: the text for each name; it may be a phrase that was put together itself.
    """

    template: str
    values: dict[str, str]


class Phrase(str):
    """An English text, and how it was put together.

    Args:
        text: as it reads.
        template: the sentence with names in braces; the text itself where there are none.
        values: the text for each name.
    """

    template: str
    values: Mapping[str, str]

    def __new__(cls, text: str, template: str | None = None, values: Mapping[str, str] | None = None) -> Phrase:
        made = super().__new__(cls, text)
        made.template = text if template is None else template
        made.values = values or {}
        return made

    def format(self, *_: object, **values: object) -> Phrase:
        """Put values into a template; those with a format of their own are kept as they read."""
        used = {name: (values[name], spec) for _, name, spec, _ in Formatter().parse(self.template) if name}
        texts = {name: v if isinstance(v, str) else format(v, spec or "") for name, (v, spec) in used.items()}
        return Phrase(self.template.format(**values), template=self.template, values=texts)


def phrase(template: str, **values: object) -> Phrase:
    """Make a sentence. Translations are found by its template.

    Args:
        template: English, with names in braces.
        values: by name; none leaves a template to be formatted later.
    """
    made = Phrase(template)
    return made.format(**values) if values else made


LISTED = phrase("{first}, {then}")
ALONGSIDE = phrase("{first}; {then}")
FOLLOWED = phrase("{first} {then}")
TOGETHER = phrase("{first} and {then}")

NAMED_RANKS = 16
"""Longest list of ranks that a sentence spells out."""
SHOWN_RUNS = 16
"""Most runs that a cell of a table shows."""


def joined(form: Phrase, parts: Iterable[str]) -> str:
    """Join texts; empty ones are left out.

    Args:
        form: LISTED, ALONGSIDE, FOLLOWED or TOGETHER.
        parts: the texts.
    """
    given = [part for part in parts if part]
    return reduce(lambda first, then: form.format(first=first, then=then), given) if given else ""


def opening(words: str) -> Phrase:
    """Words with a capital letter, for the beginning of a sentence."""
    return Phrase(f"{words[:1].upper()}{words[1:]}", "{words}", {"words": words})


def phrases_of(record: Any) -> dict[str, Phrasing]:
    """How the texts of a record were put together, by text, as far as they are phrases."""
    return {
        str(each): Phrasing(each.template, {name: str(value) for name, value in each.values.items()})
        for each in _phrases_in(record)
    }


def _phrases_in(value: Any) -> Iterator[Phrase]:
    """Every phrase in a record, and the phrases that it was put together from."""
    for leaf in leaves_of(value):
        if isinstance(leaf, Phrase):
            yield leaf
            yield from _phrases_in(leaf.values)


def name_ranks(ranks: Sequence[int]) -> str:
    """Spell out a set of ranks, or its beginning and its size: "ranks 4, 5", "rank 7", "no rank"."""
    if not ranks:
        return phrase("no rank")
    if len(ranks) == 1:
        return phrase("rank {rank}", rank=ranks[0])
    shown = ", ".join(str(rank) for rank in ranks[:NAMED_RANKS])
    if len(ranks) <= NAMED_RANKS:
        return phrase("ranks {shown}", shown=shown)
    return phrase("{number} ranks ({shown}, ...)", number=len(ranks), shown=shown)


def rank_list(ranks: Sequence[int], total: int | None = None) -> str:
    """Ranks in runs, such as "0-3, 8", cut after 16 runs.

    Args:
        ranks: ascending.
        total: how many there are when `ranks` holds only the first of them.
    """
    if not ranks:
        return phrase("none")
    runs = runs_of(ranks)
    shown = ", ".join(_run(first, last) for first, last in runs[:SHOWN_RUNS])
    total = len(ranks) if total is None else total
    if len(runs) <= SHOWN_RUNS and total == len(ranks):
        return shown
    return phrase("{shown}, ... ({total} ranks)", shown=shown, total=total)


def runs_of(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """First and last rank of each run of ranks that follow each other; the ranks are ascending."""
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def _run(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"
