"""The report as one HTML file that opens offline: no network, no server, no second file.

    Path("report.html").write_text(report_html(open_incident(incident, directory)), encoding="utf-8")

The page has the same sections as the terminal; some of them are drawn as pictures.
"""

from __future__ import annotations

from megatron_nanguard.report.html.page import render_page
from megatron_nanguard.report.html.parts import page_parts
from megatron_nanguard.report.lang import Translator
from megatron_nanguard.report.opened_incident import OpenedIncident


def report_html(opened: OpenedIncident, lang: str = "en") -> str:
    """Write one incident as an HTML page.

    Args:
        opened: the incident, with a row per rank.
        lang: one of the LANGUAGES.
    """
    translator = Translator(lang, opened.incident.phrases)
    return render_page(opened, page_parts(opened, translator), translator)
