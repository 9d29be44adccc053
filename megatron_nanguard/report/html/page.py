"""The whole page: its parts, data, styles and scripts in one file.

The page contains place and state of every rank, and further facts of the worst ranks only, so that a page of sixteen
thousand ranks is still small enough to be mailed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from megatron_nanguard.postmortem.rank_table import RankRow, RankState
from megatron_nanguard.printable import printable
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import LISTED, TOGETHER, joined, name_ranks, phrase
from megatron_nanguard.records.trace import place_words
from megatron_nanguard.report.formatting import call_words, counted, number, pattern_words
from megatron_nanguard.report.html.embedding import content_policy, digest, json_island, plotting_library
from megatron_nanguard.report.html.glossary import about
from megatron_nanguard.report.html.parts import page_parts
from megatron_nanguard.report.html.pictures.figure import Figure
from megatron_nanguard.report.lang import Translator
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.rank_states import NAMES
from megatron_nanguard.version import __version__

HERE: Final = Path(__file__).parent
SCRIPTS: Final = ("data.js", "theme.js", "copy.js", "grid.js", "search.js", "charts.js")
"""In the order they run; each uses the ones before it."""
LAYER: Final = re.compile(r"^decoder\.layers\.(?=\d)")
NAMED_RANKS: Final = 4
DETAILED_RANKS: Final = 256
SHOWN_LAYERS: Final = 12
SHOWN_NOTES: Final = 8
DRAWN: Final = ("name", "traces", "layout", "width")
"""What the script of the page needs of a figure to draw it."""
SCRIPT_TEXTS: Final = {
    "state": phrase("state"),
    "file": phrase("file"),
    "elsewhere": phrase("see its own file for the rest"),
    "rank": phrase("Rank {rank}, {place}", rank="{rank}", place="{place}"),
    "cell": phrase("rank {rank}, {place}: {state}", rank="{rank}", place="{place}", state="{state}"),
    "many": phrase("{number} ranks, the worst first", number="{number}"),
}
"""Sentences about a chosen cell; the script of the page puts the values in."""


Facts = list[tuple[str, str]]


def report_html(opened: OpenedIncident, lang: str = "en") -> str:
    """Write one incident as an HTML page.

    Args:
        opened: the incident, with a row per rank.
        lang: one of the LANGUAGES.
    """
    translator = Translator(lang, opened.incident.phrases)
    parts = page_parts(opened, translator)
    figures = [part.picture for part in parts if isinstance(part.picture, Figure)]
    library = plotting_library() if figures else None
    script = "\n".join(map(_asset, SCRIPTS))
    return (
        _environment(translator)
        .get_template("page.html.j2")
        .render(
            lang=translator.lang,
            version=__version__,
            title=tab_title(opened.incident),
            about=about(opened.incident),
            run=opened.incident.run_id,
            step=opened.incident.step,
            parts=parts,
            policy=content_policy([digest(script)] + ([library.digest] if library else [])),
            style=Markup(_asset("page.css")),
            script=Markup(script),
            library=Markup(library.packed) if library else None,
            ranks=Markup(json_island(translator.translated(_ranks(opened)))),
            figures=Markup(json_island([{name: getattr(figure, name) for name in DRAWN} for figure in figures])),
        )
    )


def tab_title(incident: Incident) -> str:
    """Make the title of the browser tab: "rank 5 index_put_ L3.mlp, step 3, bb8e".

    It names origin, step and the end of the run's name, so that the incidents of a day can be told apart.
    """
    return phrase(
        "{what}, step {step}, {run}", what=_what(incident), step=incident.step, run=incident.run_id.rpartition("-")[2]
    )


def _environment(translator: Translator) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: _printable(value, translator),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["phrase"] = phrase
    return environment


def _printable(value: object, translator: Translator) -> object:
    """Translate what a template prints, and spell out control characters; jinja escapes the result."""
    return printable(translator.translate(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return (HERE / "assets" / name).read_text(encoding="utf-8")


def _ranks(opened: OpenedIncident) -> dict[str, object]:
    return {
        "places": rank_places(opened.rows),
        "facts": {str(rank): facts for rank, facts in rank_details(opened).items()},
        "words": {state.value: words for state, words in NAMES.items()},
        "order": [state.value for state in RankState],
        "texts": SCRIPT_TEXTS,
    }


def _what(incident: Incident) -> str:
    if not incident.origin:
        return phrase("{who} not finite", who=_who(incident.ranks.bad_before or incident.ranks.bad_after_only))
    first = incident.origin[0]
    module = LAYER.sub("L", first.module)
    return phrase("{who} {what}", who=_who(first.members), what=f"{first.operator} {module}".rstrip())


def _who(ranks: tuple[int, ...]) -> str:
    return name_ranks(ranks) if len(ranks) <= NAMED_RANKS else counted(len(ranks), "rank")


def rank_details(opened: OpenedIncident) -> dict[int, Facts]:
    """Map each of the worst ranks to the names and values of its facts."""
    order = list(RankState)
    worst_first = sorted(opened.rows, key=lambda row: (order.index(row.state), not row.has_file, row.rank))
    return {row.rank: [*_facts(row), *_origins(row, opened.incident)] for row in worst_first[:DETAILED_RANKS]}


def rank_places(table: Sequence[RankRow]) -> list[tuple[int, str, str]]:
    """List rank, place in the layout and state of every row."""
    return [(row.rank, row.label, row.state.value) for row in table]


def _facts(row: RankRow) -> Iterator[tuple[str, str]]:
    yield phrase("state"), NAMES[row.state]
    yield from ((name, text) for name, text in ((phrase("host"), row.host), (phrase("device"), row.device)) if text)
    if row.infected and row.infected.from_ranks:
        yield phrase("infected by"), joined(LISTED, (row.infected.by, row.infected.group))
        if row.infected.first_used:
            yield phrase("first used"), row.infected.first_used
    if row.norm is not None:
        yield phrase("norm before reduction"), number(row.norm)
    if row.reduced_norm is not None:
        yield phrase("norm after reduction"), number(row.reduced_norm)
    if row.bad_by_layer:
        yield phrase("bad parameters"), _layers(row)
    if any(one.loss is not None for one in row.microbatches):
        yield phrase("losses"), ", ".join(number(one.loss) for one in row.microbatches[:16])
    yield from ((phrase("note"), note) for note in row.notes[:SHOWN_NOTES])
    if not row.has_file:
        yield phrase("file"), phrase("none that could be read")


def _origins(row: RankRow, incident: Incident) -> Iterator[tuple[str, str]]:
    """Yield a name and value for each origin on the rank."""
    for origin in incident.origin:
        if row.rank in origin.members:
            what, when = call_words(origin), place_words(origin.phase, origin.microbatch)
            words = phrase("{what}, {when}: {pattern}", what=what, when=when, pattern=pattern_words(origin.pattern))
            yield phrase("began here"), words


def _layers(row: RankRow) -> str:
    layers = list(row.bad_by_layer.items())
    shown = joined(LISTED, (phrase("{count} in {layer}", count=n, layer=layer) for layer, n in layers[:SHOWN_LAYERS]))
    more = len(layers) - SHOWN_LAYERS
    return joined(TOGETHER, (shown, counted(more, "more layer"))) if more > 0 else shown
