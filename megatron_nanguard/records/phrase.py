"""A sentence that keeps how it was put together, so that a report can translate it.

    fact = phrase("finite values in, {pattern} out: {origin}", pattern="nan", origin=phrase("log in {module}", ...))
    fact               "finite values in, nan out: log in decoder.layers.3.mlp"
    fact.template      "finite values in, {pattern} out: {origin}"
    fact.values        {"pattern": "nan", "origin": "log in decoder.layers.3.mlp"}, the latter a phrase again

Everywhere else a phrase is its English text. A record holds `phrases` beside its texts: how they were put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from string import Formatter
from typing import Any

from megatron_nanguard.records.nested import leaves_of


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
