"""The parts of the page: every section of the report, as pictures where the page has some for it, and the glossary."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.report.blocks import Block, Tone
from megatron_nanguard.report.html.glossary import glossary
from megatron_nanguard.report.html.pictures.figure import Figure
from megatron_nanguard.report.html.pictures.norm_heatmap import heat_map
from megatron_nanguard.report.html.pictures.propagation import propagation_figure
from megatron_nanguard.report.html.pictures.rank_grid import RankGrid, parallel_grid
from megatron_nanguard.report.html.pictures.replicas import compare_losses, compare_norms
from megatron_nanguard.report.html.pictures.timeline import timeline
from megatron_nanguard.report.lang import Translate, Translator
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections import SECTIONS
from megatron_nanguard.report.sections.parameters import full_table

BREAK: Final = re.compile("[:,\N{FULLWIDTH COLON}\N{FULLWIDTH COMMA}\N{FULLWIDTH LEFT PARENTHESIS}]")
"""Where the short form of a title, for the list of sections, ends."""


@dataclass(frozen=True)
class PagePart:
    """One part of the page.

    Attributes:
        kind: how it is laid out.
        name: the anchor of its section element.
        heading: its entry in the list of sections.
        title: its heading.
        picture: shown first; None where the part has words only.
        block: the section in words.
    """

    kind: Literal["block", "grid", "figure", "parameters", "fold"]
    name: str
    heading: str
    title: str
    picture: RankGrid | Figure | Block | None
    block: Block | None

    @property
    def tone(self) -> Tone:
        """How grave the part is as a whole."""
        return self.block.tone if self.block else Tone.PLAIN


def page_parts(opened: OpenedIncident, translator: Translator) -> tuple[PagePart, ...]:
    """Make the parts of every section that has something to show, in the order of reading, and the glossary.

    Args:
        opened: the incident.
        translator: translates into the language of the page.
    """
    words = translator.translated(glossary())
    return (
        *(part for name in SECTIONS for part in _section_parts(name, opened, translator)),
        PagePart("fold", "words", words.title, words.title, None, words),
    )


def _section_parts(name: str, opened: OpenedIncident, translator: Translator) -> Iterator[PagePart]:
    """Yield the pictures of a section, the first one with its text; the text alone where nothing can be drawn."""
    block = translator.translated(SECTIONS[name](opened))
    drawn = [draw(opened, translator.translate) for draw in PICTURES.get(name, ())]
    pictures = [_picture_part(picture, translator) for picture in drawn if picture is not None]
    if pictures:
        yield replace(pictures[0], block=block)
        yield from pictures[1:]
    elif block is not None:
        yield _block_part(name, block)


def _block_part(name: str, block: Block) -> PagePart:
    """Make the part of a section in words; the first sentence of the verdict becomes the title of its part."""
    if name == "verdict" and block.text:
        return PagePart("block", name, block.title, block.text[0], None, replace(block, text=block.text[1:]))
    return PagePart("block", name, BREAK.split(block.title)[0], block.title, None, block)


def _picture_part(picture: RankGrid | Figure | Block, translator: Translator) -> PagePart:
    if isinstance(picture, Figure):
        # The texts of a figure that come from the incident are translated and escaped already.
        picture = translator.without_records().translated(picture)
        return PagePart("figure", picture.name, picture.title, picture.title, picture, None)
    if isinstance(picture, RankGrid):
        part = PagePart("grid", "ranks", phrase("Ranks"), phrase("Ranks in their parallel layout"), picture, None)
    else:
        part = PagePart("parameters", "parameters", phrase("Parameters"), picture.title, picture, None)
    return translator.translated(part)


Draw = Callable[[OpenedIncident, Translate], RankGrid | Figure | Block | None]
PICTURES: Final[dict[str, tuple[Draw, ...]]] = {
    "ranks": (lambda opened, _: parallel_grid(opened.rows, opened.incident.sizes) if opened.rows else None,),
    "propagation": (lambda opened, translate: propagation_figure(opened.incident, translate),),
    "norms_by_layer": (
        lambda opened, _: heat_map(opened.rows, opened.incident.sizes, opened.incident.loss_scale),
        lambda opened, _: compare_norms(opened.rows, opened.incident.sizes, opened.incident.loss_scale),
    ),
    "parameters": (lambda opened, _: full_table(opened.incident),),
    "microbatches": (
        lambda opened, translate: timeline(opened.incident, translate),
        lambda opened, _: compare_losses(opened.rows),
    ),
}
"""What the page draws for a section, by its name. A section that is not listed is shown in words."""
