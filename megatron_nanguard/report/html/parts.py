"""The parts of the page in the order they are read: the sections of the report, some of them as pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.report import SECTIONS, Section
from megatron_nanguard.report.blocks import Block, Tone
from megatron_nanguard.report.html.glossary import glossary
from megatron_nanguard.report.html.parameters import parameter_table
from megatron_nanguard.report.html.pictures.figure import Figure
from megatron_nanguard.report.html.pictures.norm_heatmap import heat_map
from megatron_nanguard.report.html.pictures.propagation import propagation_figure
from megatron_nanguard.report.html.pictures.rank_grid import RankGrid, parallel_grid
from megatron_nanguard.report.html.pictures.replicas import compare_losses, compare_norms
from megatron_nanguard.report.html.pictures.timeline import timeline
from megatron_nanguard.report.lang import Translator
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections import gradient_norms, microbatches, parameters, propagation, ranks, verdict

BREAK: Final = re.compile("[:,\N{FULLWIDTH COLON}\N{FULLWIDTH COMMA}\N{FULLWIDTH LEFT PARENTHESIS}]")
"""Where the short form of a title ends."""


@dataclass(frozen=True)
class PagePart:
    """One part of the page.

    Attributes:
        kind: how it is laid out.
        name: its anchor.
        heading: in the list of sections.
        title: above it.
        picture: what stands in it first; None where the words are all there is.
        block: the same in words.
    """

    kind: Literal["block", "grid", "figure", "parameters", "fold"]
    name: str
    heading: str
    title: str
    picture: RankGrid | Figure | Block | None
    block: Block | None

    @property
    def tone(self) -> Tone:
        """How grave it is as a whole."""
        return self.block.tone if self.block else Tone.PLAIN


def page_parts(opened: OpenedIncident, translator: Translator) -> tuple[PagePart, ...]:
    """Everything that there is something to say of, and what the words mean; what has no data is left out.

    Args:
        opened: the incident.
        translator: tells it in the language of the page.
    """
    words = translator.translated(glossary())
    return (
        *(part for section in SECTIONS for part in _parts(section, opened, translator)),
        PagePart("fold", "words", words.title, words.title, None, words),
    )


def _parts(section: Section, opened: OpenedIncident, translator: Translator) -> Iterator[PagePart]:
    """The pictures of a section, the first one with its words; the words alone where nothing can be drawn."""
    words = translator.translated(section(opened))
    pictures = [part for draw in PICTURES.get(section, ()) if (part := draw(opened, translator))]
    if pictures:
        yield replace(pictures[0], block=words)
        yield from pictures[1:]
    elif words is not None:
        yield _words(section, words)


def _words(section: Section, block: Block) -> PagePart:
    """A section as the terminal has it; the first sentence of the verdict is the title of the page."""
    name = section.__module__.rpartition(".")[2]
    if section is verdict.describe and block.text:
        return PagePart("block", name, block.title, block.text[0], None, replace(block, text=block.text[1:]))
    return PagePart("block", name, _heading(block.title), block.title, None, block)


def _heading(title: str) -> str:
    """A title without what stands after its colon or comma: "How it spread"."""
    return BREAK.split(title)[0]


def _grid(opened: OpenedIncident, translator: Translator) -> PagePart | None:
    if not opened.rows:
        return None
    grid = parallel_grid(opened.rows, opened.incident.sizes)
    heading, title = phrase("Ranks"), phrase("Ranks in their parallel layout")
    return translator.translated(PagePart("grid", "ranks", heading, title, grid, None))


def _parameters(opened: OpenedIncident, translator: Translator) -> PagePart | None:
    table = parameter_table(opened.incident)
    if table is None:
        return None
    return translator.translated(PagePart("parameters", "parameters", phrase("Parameters"), table.title, table, None))


def _figure(figure: Figure | None, translator: Translator) -> PagePart | None:
    """What comes from the incident is told and escaped already; here only our own sentences are told."""
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


PICTURES: Final[dict[Section, tuple[Callable[[OpenedIncident, Translator], PagePart | None], ...]]] = {
    ranks.describe: (_grid,),
    propagation.describe: (_propagation,),
    gradient_norms.describe: (_norms, _replicas),
    parameters.describe: (_parameters,),
    microbatches.describe: (_timeline, _losses),
}
"""Sections of which the page has pictures. A section that is not listed stands in the page in words."""
