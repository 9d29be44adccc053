"""The page as a whole: one file, no network, hostile names as text, and small enough at sixteen thousand ranks."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.report.html.page import DETAILED_RANKS, rank_details, rank_places, report_html, tab_title
from megatron_nanguard.report.html.parts import page_parts
from megatron_nanguard.report.lang import Translator
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections import SECTIONS
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import SETS, incident
from tests.unit.report.factories import bundled
from tests.unit.report.html.factories import demo_incident, opened_demo, opened_large_run

MEGABYTE = 1e6
HOSTILE = "</script><img src=x onerror=alert(1)>'\"&\u2028\u202e{{ 7 * 7 }}"


class Page(HTMLParser):
    """The tags and the words that a browser finds in the page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.words.append(data)

    def ids(self) -> list[str | None]:
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]

    def values(self, name: str) -> list[str | None]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


@pytest.fixture(scope="module")
def demo() -> str:
    return report_html(opened_demo())


def test_the_page_begins_with_the_verdict(demo: str) -> None:
    words = " ".join(Page(demo).words)
    assert "Step 3: rank 5 (tp1pp1dp0, host node1) made the first NaN: log in decoder.layers.3.mlp" in words


def test_every_section_of_the_report_is_in_the_page_in_words_or_as_pictures() -> None:
    opened = opened_demo()
    parts = page_parts(opened, Translator("en", {}))

    said = [block for section in SECTIONS.values() if (block := section(opened))]
    assert [part.block for part in parts[1:-1] if part.block] == said[1:]
    assert (parts[0].heading, parts[-1].name) == ("Verdict", "words")
    assert [part.name for part in parts if part.picture] == [
        "ranks",
        "propagation",
        "norms",
        "replicas",
        "timeline",
        "losses",
        "parameters",
    ]


def test_parts_of_the_page_without_data_are_left_out() -> None:
    parts = page_parts(OpenedIncident(incident(), Path("/data/DIR")), Translator("en", {}))
    assert [part.name for part in parts] == ["verdict", "ranks", "run_facts", "files", "words"]
    assert not any(part.picture for part in parts)


def test_a_page_without_charts_carries_no_plotting_library() -> None:
    text = report_html(OpenedIncident(incident(), Path("/data/DIR")))
    assert 'id="data-library"' not in text
    assert len(text) < 0.1 * MEGABYTE


def test_the_page_fetches_nothing_and_its_anchors_are_unique(demo: str) -> None:
    page = Page(demo)
    ids = page.ids()
    assert len(ids) == len(set(ids))
    assert page.values("src") == []
    assert all(str(link).startswith("#") for link in page.values("href"))
    assert {str(link)[1:] for link in page.values("href")} <= set(ids)


def test_hostile_names_stay_text() -> None:
    opened = opened_demo(
        run_id=HOSTILE,
        notes=(HOSTILE,),
        origin=(origin(module=HOSTILE, operator=HOSTILE, path=(HOSTILE, HOSTILE)),),
    )

    page = Page(report_html(opened))

    assert "img" not in [tag for tag, _ in page.tags]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    spelled = HOSTILE.replace("\u2028", "\\u2028").replace("\u202e", "\\u202e")
    assert spelled in page.words


def test_a_command_can_be_copied(tmp_path: Path) -> None:
    page = Page(report_html(OpenedIncident(demo_incident(), bundled(tmp_path))))
    assert f"python {tmp_path}/bundle/repro.py" in page.words
    assert "Copied" in page.values("data-done")


def test_the_tab_title_differs_between_incidents() -> None:
    assert tab_title(demo_incident()) == "rank 5 log L3.mlp, step 3, ab12"
    assert tab_title(incident(ranks=SETS)) == "ranks 0, 1, 4, 5 not finite, step 3, ab12"
    assert tab_title(incident(ranks=RankSets(tuple(range(9)), (), ()))) == "9 ranks not finite, step 3, ab12"


def test_the_same_incident_gives_the_same_page(demo: str) -> None:
    assert report_html(opened_demo()) == demo


def test_the_page_of_sixteen_thousand_ranks_is_small_enough_to_mail() -> None:
    assert len(report_html(opened_large_run()).encode()) < 10 * MEGABYTE


def test_the_plotting_library_is_imported_for_a_page_alone() -> None:
    code = "import sys, megatron_nanguard.report.html.page; print([m for m in ('plotly', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_rank_of_the_origin_shows_the_origin() -> None:
    assert rank_details(opened_demo())[5] == [
        ("state", "origin"),
        ("host", "node1"),
        ("device", "Test CPU"),
        ("norm before reduction", "NaN"),
        ("losses", "4.5, 4.625, 4.75, 4.875"),
        ("began here", "log in decoder.layers.3.mlp, backward of micro-batch 2: NaN"),
    ]


def test_every_rank_has_its_place() -> None:
    assert rank_places(opened_demo().rows)[4] == (4, "tp0pp1dp0", "bad_before")


def test_in_a_large_run_the_worst_ranks_have_details() -> None:
    details = rank_details(opened_large_run())

    assert len(details) == DETAILED_RANKS
    # 40 ranks were bad before; the first of the infected follow
    assert {5000, 5007, 904, 0, 215} <= set(details)
    assert 216 not in details
