"""A whole report in Chinese, of an incident that was written to a file and read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.cells import cell_len

from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.postmortem.merging.incident import ExchangedSets, merge
from megatron_nanguard.records.incident import Incident, PolicyOutcome
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.phrase import Phrasing, phrase
from megatron_nanguard.records.step.replay import ReplayPass, ReplaySummary
from megatron_nanguard.report.html.page import report_html
from megatron_nanguard.report.html.parts import page_parts
from megatron_nanguard.report.html.pictures.figure import Figure
from megatron_nanguard.report.lang import Translator
from megatron_nanguard.report.opened_incident import open_incident
from megatron_nanguard.topology.rank_sets import describe
from tests.unit.diagnosis.factories import group, message, sink, to_arrival, to_origin, trace, traced_origin
from tests.unit.factories import SETS, SIZES, demo_postmortem, place
from tests.unit.report.factories import report_text

EXPECTED: Final = Path(__file__).parents[1] / "expected" / "chinese.txt"
DIRECTORY: Final = Path("/data/DIR")
ABORT: Final = PolicyOutcome(
    "abort",
    "abort",
    65,
    phrase("{sentence}.", sentence=phrase("Policy abort: all ranks leave with exit code {code}", code=65)),
)


def written() -> bytes:
    """The demo of the factories with its origin, in the form in which a run saves it."""
    places = {rank: place(rank) for rank in range(8)}
    groups = describe(SETS.bad_before, places, SIZES)
    exchanged = ExchangedSets(SETS, groups, describe(SETS.bad_after_only, places, SIZES))
    merged = merge(map(demo_postmortem, range(8)), exchanged=exchanged, policy=ABORT, files=["a.json", "b.json"])
    replay = ReplaySummary(True, "", True, ("plain: 0.34 s",), (ReplayPass("plain", "yes"),), "not_tried")
    bad = message(20, group(4, 5), sent="nan", causes=to_origin())
    traces = [
        trace(5, origins=(traced_origin(),), arrivals=(bad,), departures=(bad,), sinks=(sink(to_arrival(0)),)),
        trace(4, arrivals=(message(9, group(4, 5)),), sinks=(sink(to_arrival(0)),)),
    ]
    return to_json(conclude(replace(merged, replay=replay), traces))


def test_a_report_in_chinese_reads_as_a_whole() -> None:
    told = report_text(from_json(Incident, written()), DIRECTORY, "zh")

    assert told == EXPECTED.read_text(encoding="utf-8")
    assert max(map(cell_len, told.splitlines())) <= 120


def test_texts_that_a_file_has_no_template_for_stay_english() -> None:
    old = replace(from_json(Incident, written()), phrases={})

    told = report_text(old, DIRECTORY, "zh")

    assert "+ values outside of its domain: log in decoder.layers.3.mlp" in told
    assert "\n源头\n" in told


def test_an_english_report_does_not_depend_on_the_templates_in_the_file() -> None:
    read = from_json(Incident, written())

    assert report_text(read, DIRECTORY) == report_text(replace(read, phrases={}), DIRECTORY)


def test_the_page_declares_its_language_and_is_written_in_it() -> None:
    opened = open_incident(from_json(Incident, written()), DIRECTORY)

    page = report_html(opened, "zh")

    assert '<html lang="zh">' in page
    assert "输入超出定义域：decoder.layers.3.mlp 中的 log" in page
    assert "Choose a cell" not in page
    assert "Choose a cell to see its rank." in report_html(opened)


def test_markup_in_a_recorded_template_is_escaped_in_a_chart() -> None:
    read = from_json(Incident, written())
    hostile = Phrasing("{words}", {"words": '<a href="http://x">'})
    named = replace(read, phrases={**read.phrases, **{infected.by: hostile for infected in read.infected}})

    parts = page_parts(open_incident(named, DIRECTORY), Translator("zh", named.phrases))

    (chart,) = [part.picture for part in parts if part.name == "propagation"]
    assert isinstance(chart, Figure)
    drawn = str((chart.traces, chart.layout))
    assert "&lt;a href=" in drawn
    assert "<a href=" not in drawn
