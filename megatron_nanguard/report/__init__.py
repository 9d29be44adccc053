"""The report of one incident, for a terminal, a pipe or a web page.

Sections (`report/sections/`) turn the incident into neutral blocks; renderers (`report/rendering/`, `report/html/`) lay
the blocks out and know nothing about incidents; `report/lang/` translates the blocks in between.
"""

from __future__ import annotations

from typing import TextIO

from megatron_nanguard.printable import spelled_for
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.lang import Translator
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.rendering.layout import plain_text
from megatron_nanguard.report.sections import SECTIONS


def blocks_of(opened: OpenedIncident, lang: str = "en") -> list[Block]:
    """Make the blocks of all sections that have something to say.

    Args:
        opened: the incident, with a row per rank.
        lang: one of the LANGUAGES.
    """
    translator = Translator(lang, opened.incident.phrases)
    return [translator.translated(block) for section in SECTIONS.values() if (block := section(opened)) is not None]


def print_report(opened: OpenedIncident, stream: TextIO, *, has_colour: bool = True, lang: str = "en") -> None:
    """Print one incident: with colours and frames on a terminal, as plain text into anything else.

    Args:
        opened: the incident, with a row per rank.
        stream: where to print.
        has_colour: whether colours are wanted; NO_COLOR in the environment switches them off as well.
        lang: one of the LANGUAGES.
    """
    blocks = blocks_of(opened, lang)
    if not stream.isatty():
        stream.write(spelled_for(plain_text(blocks), stream.encoding))
        return
    # rich takes a tenth of a second to import, and only a terminal needs it.
    from megatron_nanguard.report.rendering.terminal import console_on, show

    show(blocks, console_on(stream, has_colour=has_colour))
