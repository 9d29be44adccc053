"""The page as a whole: parts, data, styles and scripts in one file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from megatron_nanguard.postmortem.rank_table import RankState
from megatron_nanguard.printable import printable
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.report.formatting import counted
from megatron_nanguard.report.html.embedding import content_policy, digest, island, plotting_library
from megatron_nanguard.report.html.glossary import about
from megatron_nanguard.report.html.parts import PagePart
from megatron_nanguard.report.html.pictures.figure import Figure
from megatron_nanguard.report.html.rank_details import rank_details, rank_places
from megatron_nanguard.report.lang import Translator
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.rank_states import NAMES
from megatron_nanguard.version import __version__

HERE: Final = Path(__file__).parent
SCRIPTS: Final = ("data.js", "theme.js", "copy.js", "grid.js", "search.js", "charts.js")
"""In the order they run; each stands on those before it."""

TOLD: Final = {
    "state": phrase("state"),
    "file": phrase("file"),
    "elsewhere": phrase("its own file tells the rest"),
    "rank": phrase("Rank {rank}, {place}", rank="{rank}", place="{place}"),
    "cell": phrase("rank {rank}, {place}: {state}", rank="{rank}", place="{place}", state="{state}"),
    "many": phrase("{number} ranks, the worst first", number="{number}"),
}
"""What the script says of a chosen cell; it puts the values in."""


def render_page(opened: OpenedIncident, parts: Sequence[PagePart], translator: Translator) -> str:
    """Lay out the page.

    Args:
        opened: the incident.
        parts: what stands in it, told.
        translator: tells what the templates say themselves.
    """
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
            ranks=Markup(island(translator.translated(_ranks(opened)))),
            figures=Markup(island([_drawn(figure) for figure in figures])),
        )
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


def _printable(value: Any, translator: Translator) -> Any:
    """What a template prints, without characters that turn a line around; escaping comes after it."""
    return printable(translator.translate(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return (HERE / "assets" / name).read_text(encoding="utf-8")


def _ranks(opened: OpenedIncident) -> dict[str, Any]:
    return {
        "places": rank_places(opened.rows),
        "facts": {str(rank): facts for rank, facts in rank_details(opened).items()},
        "words": {state.value: words for state, words in NAMES.items()},
        "order": [state.value for state in RankState],
        "told": TOLD,
    }


def _drawn(figure: Figure) -> dict[str, Any]:
    """What the script needs to draw a chart."""
    return {"name": figure.name, "traces": figure.traces, "layout": figure.layout, "width": figure.width}


LAYER: Final = re.compile(r"^decoder\.layers\.(?=\d)")
NAMED: Final = 4
BEGAN: Final = phrase("{who} {what}")
NOT_FINITE: Final = phrase("{who} not finite")
TITLE: Final = phrase("{what}, step {step}, {run}")


def tab_title(incident: Incident) -> str:
    """What it was, the step, and the end of the run's name."""
    return TITLE.format(what=_what(incident), step=incident.step, run=incident.run_id.rpartition("-")[2])


def _what(incident: Incident) -> str:
    if not incident.origin:
        return NOT_FINITE.format(who=_who(incident.ranks.bad_before or incident.ranks.bad_after_only))
    first = incident.origin[0]
    module = LAYER.sub("L", first.module)
    return BEGAN.format(who=_who(first.members), what=f"{first.operator} {module}".rstrip())


def _who(ranks: tuple[int, ...]) -> str:
    return name_ranks(ranks) if len(ranks) <= NAMED else counted(len(ranks), "rank")
