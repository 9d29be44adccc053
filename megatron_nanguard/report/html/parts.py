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
from megatron_nanguard.report.lang import Translator
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
    pictures = [part for draw in PICTURES.get(name, ()) if (part := draw(opened, translator))]
    if pictures:
        yield replace(pictures[0], block=block)
        yield from pictures[1:]
    elif block is not None:
        yield _block_part(name, block)


def _block_part(name: str, block: Block) -> PagePart:
    """Make the part of a section in words; the first sentence of the verdict becomes the title of its part."""
    if name == "verdict" and block.text:
        return PagePart("block", name, block.title, block.text[0], None, replace(block, text=block.text[1:]))
    return PagePart("block", name, _heading(block.title), block.title, None, block)


def _heading(title: str) -> str:
    """Cut a title at its first colon, comma or parenthesis: "How it spread"."""
    return BREAK.split(title)[0]


def _grid(opened: OpenedIncident, translator: Translator) -> PagePart | None:
    if not opened.rows:
        return None
    grid = parallel_grid(opened.rows, opened.incident.sizes)
    heading, title = phrase("Ranks"), phrase("Ranks in their parallel layout")
    return translator.translated(PagePart("grid", "ranks", heading, title, grid, None))


def _parameters(opened: OpenedIncident, translator: Translator) -> PagePart | None:
    table = full_table(opened.incident)
    if table is None:
        return None
    return translator.translated(PagePart("parameters", "parameters", phrase("Parameters"), table.title, table, None))


def _figure(figure: Figure | None, translator: Translator) -> PagePart | None:
    """Translate the sentences of a figure; its texts from the incident are translated and escaped already."""
    if figure is None:
        return None
    figure = translator.without_records().translated(figure)
    return PagePart("figure", figure.name, figure.title, figure.title, figure, None)


def _propagation(opened: OpenedIncident, translator: Translator) -> PagePart | None:
    return _figure(propagation_figure(opened.incident, translator.translate), translator)


def _timeline(opened: OpenedIncident, translator: Translator) -> PagePart | None:
    return _figure(timeline(opened.incident, translator.translate), translator)


def _norms(opened: OpenedIncident, translator: Translator) -> PagePart | None:
    return _figure(heat_map(opened.rows, opened.incident.sizes, opened.incident.loss_scale), translator)


def _replicas(opened: OpenedIncident, translator: Translator) -> PagePart | None:
    return _figure(compare_norms(opened.rows, opened.incident.sizes, opened.incident.loss_scale), translator)


def _losses(opened: OpenedIncident, translator: Translator) -> PagePart | None:
    return _figure(compare_losses(opened.rows), translator)


PICTURES: Final[dict[str, tuple[Callable[[OpenedIncident, Translator], PagePart | None], ...]]] = {
    "ranks": (_grid,),
    "propagation": (_propagation,),
    "norms_by_layer": (_norms, _replicas),
    "parameters": (_parameters,),
    "microbatches": (_timeline, _losses),
}
"""What the page draws for a section, by its name. A section that is not listed is shown in words."""
