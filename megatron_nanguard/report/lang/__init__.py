"""The report in another language: every sentence of ours by its English template.

A section makes English blocks; here they are told again, text by text. What has no translation, such as what an old
version wrote, stays English, and so do names, operators and numbers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Formatter
from typing import Final, TypeVar

import orjson

from megatron_nanguard.diagnosis import advice, meanings
from megatron_nanguard.records.phrase import Phrase, Phrasing
from megatron_nanguard.report.blocks import each_text

LANGUAGES: Final = ("en", "zh")
PUNCTUATION: Final = "\u2026\u3001\u3002\uff08\uff09\uff0c\uff1a\uff1b"
IDEOGRAPHS: Final = "\u4e00-\u9fff"
NO_BLANK: Final = re.compile(f"(?<=[{PUNCTUATION}]) | (?=[{PUNCTUATION}])|(?<=[{IDEOGRAPHS}]) (?=[{IDEOGRAPHS}])")
"""Where two texts meet: wide punctuation brings its own blank, and ideographs have none between them."""
MOST_PHRASES: Final = 256
"""Of one text; a file in which a phrase has itself inside, or ever more others, was not written by us."""

Form = TypeVar("Form")
Translate = Callable[[str], str]


class Translator:
    """Tells the texts of one report in one language.

    Args:
        lang: "en" or "zh".
        recorded: how the texts of the incident were put together.
    """

    def __init__(self, lang: str, recorded: Mapping[str, Phrasing]) -> None:
        self.lang = lang
        self._catalog = catalog(lang)
        self._recorded = recorded
        self._left = 0

    def without_records(self) -> Translator:
        """One that knows our sentences only, and looks no text up in what a file says of it."""
        return Translator(self.lang, {})

    def translate(self, text: str) -> str:
        """One text; as it is where the language has none for it."""
        self._left = MOST_PHRASES
        return self._translate(text)

    def _translate(self, text: str) -> str:
        how = text if isinstance(text, Phrase) else self._recorded.get(text)
        form = self._catalog.get(how.template) if how else None
        if how is None or form is None or self._left == 0 or not placeholders(form) <= how.values.keys():
            return text
        self._left -= 1
        told = form.format(**{name: self._translate(value) for name, value in how.values.items()})
        return NO_BLANK.sub("", told)

    def translated(self, form: Form) -> Form:
        """Every text of a form."""
        return each_text(form, self.translate) if self._catalog else form


HERE = Path(__file__).parent


@functools.cache
def catalog(lang: str) -> dict[str, str]:
    """Everything that a language has; nothing for English."""
    return {} if lang == "en" else {**sentences(lang), **_texts(lang)}


def sentences(lang: str) -> dict[str, str]:
    """The sentences that stand in the code."""
    told: dict[str, str] = {}
    for file in sorted((HERE / lang).glob("*.json")):
        told |= orjson.loads(file.read_bytes())
    return told


def placeholders(template: str) -> set[str]:
    """The names in the braces of a template."""
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def _texts(lang: str) -> dict[str, str]:
    """The texts that are data, by what they are in English."""
    told: dict[str, str] = {words: meanings.texts(lang)[cause] for cause, words in meanings.texts().items()}
    for pattern, known in advice.texts().items():
        other = advice.texts(lang)[pattern]
        told |= {known.what: other.what, known.check: other.check, known.change: other.change}
    return told
