"""Names from a model, a data set or a damaged file are text in the page, and never run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.incident import Infected, MergedParameter
from megatron_nanguard.report.opened_incident import OpenedIncident
from tests.browser.conftest import Open
from tests.unit.diagnosis.factories import NAN, origin
from tests.unit.report.html.factories import demo_incident, row

pytestmark = pytest.mark.timeout(180)

ATTACKS = (
    "</script><script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    '"><svg onload="window.hit = 1">',
    '<a href="javascript:window.hit=1">click</a>',
    "{{ config }}{% raw %}${window.hit = 1}%{customdata}",
    "\u2028window.hit = 1\u2029",
)
HOSTILE = " ".join(ATTACKS)


def hostile_incident() -> OpenedIncident:
    """The demo with an attack in every text that comes from a model, a host or a file."""
    bad: Any = HOSTILE
    incident = demo_incident(
        run_id=HOSTILE,
        summary=HOSTILE,
        notes=(HOSTILE,),
        versions={HOSTILE: HOSTILE},
        files=(HOSTILE,),
        origin=(
            origin(
                module=HOSTILE, operator=HOSTILE, source_line=HOSTILE, facts=replace(NAN, name=HOSTILE), path=ATTACKS
            ),
            origin(rank=2, phase=bad, coords=HOSTILE),
        ),
        infected=tuple(Infected(4, attack, attack, (5,), f"backward of micro-batch 2, {attack}") for attack in ATTACKS),
        causes=(RankedCause(HOSTILE, 0.5, ATTACKS, ATTACKS, ATTACKS, HOSTILE),),
        parameters=tuple(
            MergedParameter(attack, "local", bad, 1.0, None, None, (4,), 1, (HOSTILE,)) for attack in ATTACKS
        ),
    )
    norms = dict.fromkeys(ATTACKS, 1.0)
    rows = [row(rank, host=HOSTILE, device=HOSTILE, notes=ATTACKS, norm_by_layer=norms) for rank in range(8)]
    return OpenedIncident(incident, Path(HOSTILE), tuple(rows))


def test_no_name_runs_or_becomes_markup(open_page: Open) -> None:
    opened = open_page(hostile_incident())
    page = opened.page

    for cell in page.locator("#rank-grid .cell").all():
        cell.click()
    page.locator("#chart-propagation .nsewdrag").first.hover()

    assert page.evaluate("window.hit") is None
    assert page.locator("img, iframe, a[href^='javascript'], .chart a").count() == 0
    assert (
        page.evaluate(
            "[...document.querySelectorAll('*')].flatMap((each) => each.getAttributeNames())"
            ".filter((name) => name.startsWith('on'))"
        )
        == []
    )
    assert ATTACKS[0] in page.locator("#causes").inner_text()
    opened.keep("hostile")


def test_the_policy_stops_what_would_slip_through(open_page: Open) -> None:
    opened = open_page(hostile_incident())
    opened.requests = opened.requests[:1]

    opened.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.hit = 1";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<img src='data:,' onerror='window.hit = 2'>");
            document.body.insertAdjacentHTML("beforeend", "<img src='https://example.invalid/x'>");
        }"""
    )
    opened.page.wait_for_timeout(300)

    assert opened.page.evaluate("window.hit") is None
    refused = [complaint for complaint in opened.complaints if "Content Security Policy" in complaint]
    assert len(refused) >= 3
    # Chromium announces a request before it refuses it.
    assert opened.requests[1:] == ["https://example.invalid/x"]
    opened.complaints.clear()
    opened.requests.clear()
