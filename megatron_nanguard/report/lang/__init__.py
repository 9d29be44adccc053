"""The report in another language.

Sections write English: each sentence is a `phrase` that keeps its English template and its values. A translator looks
the template up in the texts of a language and fills the values in again. A template without a translation, such as one
of another version, stays English, and so do names, operators and numbers.

The texts of a language are data in `report/lang/<language>/`, one file for each part of the product:

    {"finite values in, {pattern} out: {origin}": "... {pattern} ... {origin}"}
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Formatter
from typing import Final, TypeVar

import orjson

from megatron_nanguard.diagnosis.texts import advice_texts
from megatron_nanguard.records.phrase import Phrase, Phrasing
from megatron_nanguard.report.blocks import each_text

HERE: Final = Path(__file__).parent
LANGUAGES: Final = ("en", "zh")
PUNCTUATION: Final = "\u2026\u3001\u3002\uff08\uff09\uff0c\uff1a\uff1b"
IDEOGRAPHS: Final = "\u4e00-\u9fff"
NO_BLANK: Final = re.compile(f"(?<=[{PUNCTUATION}]) | (?=[{PUNCTUATION}])|(?<=[{IDEOGRAPHS}]) (?=[{IDEOGRAPHS}])")
"""Blanks to drop where two texts meet: wide punctuation contains its blank, and ideographs have none between them."""
MAX_PHRASES: Final = 256
"""Phrases that are translated inside of one text. A file with a phrase that contains itself was not written by us."""

Form = TypeVar("Form")
Translate = Callable[[str], str]
"""Puts one text into the language of the report."""


class Translator:
    """Translates the texts of one report.

    Args:
        lang: one of the LANGUAGES.
        recorded: the template and values of each text that the incident has, as they were saved with it, by the text.
    """

    def __init__(self, lang: str, recorded: Mapping[str, Phrasing]) -> None:
        self.lang = lang
        self._catalog = catalog(lang)
        self._recorded = recorded
        self._phrases_left = 0

    def without_records(self) -> Translator:
        """Make a translator that knows the phrases of the code and ignores the templates saved in the incident."""
        return Translator(self.lang, {})

    def translate(self, text: str) -> str:
        """Translate one text; a text without a translation is returned as it is."""
        self._phrases_left = MAX_PHRASES
        return self._translate(text)

    def translated(self, form: Form) -> Form:
        """Copy a form, such as a block, with every text in it translated."""
        return each_text(form, self.translate) if self._catalog else form

    def _translate(self, text: str) -> str:
        phrasing = text if isinstance(text, Phrase) else self._recorded.get(text)
        template = self._catalog.get(phrasing.template) if phrasing else None
        if phrasing is None or template is None or self._phrases_left == 0:
            return text
        if not placeholders(template) <= phrasing.values.keys():
            return text
        self._phrases_left -= 1
        translated = template.format(**{name: self._translate(value) for name, value in phrasing.values.items()})
        return NO_BLANK.sub("", translated)


@functools.cache
def catalog(lang: str) -> dict[str, str]:
    """Return all translated texts of a language by their English; empty for English itself."""
    return {} if lang == "en" else {**sentences(lang), **_data_texts(lang)}


def sentences(lang: str) -> dict[str, str]:
    """Return the translated templates of the phrases in the code, by the English template."""
    found: dict[str, str] = {}
    for file in sorted((HERE / lang).glob("*.json")):
        found |= orjson.loads(file.read_bytes())
    return found


def placeholders(template: str) -> set[str]:
    """Find the names in the braces of a template."""
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def _data_texts(lang: str) -> dict[str, str]:
    """Return the translations of the advice on known patterns, by the English text."""
    found: dict[str, str] = {}
    for pattern, english in advice_texts().items():
        found |= zip(english, advice_texts(lang)[pattern], strict=True)
    return found
