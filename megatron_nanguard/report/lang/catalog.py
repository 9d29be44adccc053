"""What a language has: from English template to its own. The texts are data, in a file for each part of the product.

{"finite values in, {pattern} out: {origin}": "... {pattern} ... {origin}"}
"""

from __future__ import annotations

import functools
from pathlib import Path
from string import Formatter

import orjson

from megatron_nanguard.diagnosis import advice, meanings

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
