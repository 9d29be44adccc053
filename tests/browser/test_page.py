"""The page as a person meets it: read, clicked, searched, in the dark, by keyboard, narrow and printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from megatron_nanguard.report.opened_incident import OpenedIncident
from tests.browser.conftest import Open, Opened
from tests.unit.report.factories import bundled
from tests.unit.report.html.factories import demo_incident, opened_demo, opened_large_run

pytestmark = pytest.mark.timeout(180)

CHARTS = ("propagation", "norms", "replicas", "timeline", "losses")


def background(page: Page) -> str:
    """Colour behind the page."""
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def ink(page: Page) -> str:
    """Colour of the words in a chart."""
    return str(page.evaluate("getComputedStyle(document.querySelector('#chart-norms text')).fill"))


def test_the_page_opens_with_the_verdict_and_draws_every_chart(demo: Opened) -> None:
    expect(demo.page.locator("h1")).to_contain_text("rank 5 (tp1pp1dp0, host node1) made the first NaN")
    for name in CHARTS:
        expect(demo.page.locator(f"#chart-{name} .main-svg").first).to_be_visible()
    expect(demo.page.locator("#chosen-rank")).to_contain_text("Rank 5, tp1pp1dp0")
    demo.keep("light")


def test_a_click_on_a_cell_shows_that_rank(demo: Opened) -> None:
    page = demo.page

    page.get_by_role("button", name="rank 2, tp0pp0dp1").click()

    chosen = page.locator("#chosen-rank")
    expect(chosen.locator("h3")).to_have_text("Rank 2, tp0pp0dp1")
    expect(chosen).to_contain_text("bad after it only")
    expect(chosen).not_to_contain_text("Rank 5")


def test_a_click_on_the_heat_map_shows_its_rank(demo: Opened) -> None:
    page = demo.page
    plot = page.locator("#chart-norms .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None

    # last of 5 layers, last of 4 pipelines: rank 7
    plot.click(position={"x": box["width"] * 0.9, "y": box["height"] * 0.88})

    expect(page.locator("#chosen-rank h3")).to_have_text("Rank 7, tp1pp1dp1")


def test_a_command_is_copied_whole(open_page: Open, tmp_path: Path) -> None:
    opened = OpenedIncident(demo_incident(), bundled(tmp_path))
    page = open_page(opened, permissions=["clipboard-read", "clipboard-write"]).page

    page.locator("#verdict .command button").click()

    expect(page.locator("#verdict .command button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"python {tmp_path}/bundle/repro.py"


def test_the_words_of_the_page_are_explained_where_somebody_asks(demo: Opened) -> None:
    words = demo.page.locator("#words")
    expect(words.locator("dl")).to_be_hidden()
    words.locator("summary").click()
    expect(words.locator("dl")).to_contain_text("exit code 65")


def test_the_search_keeps_parameters_that_hold_every_word(demo: Opened) -> None:
    page = demo.page
    rows = page.locator("#parameters-table tbody tr:visible")
    expect(rows).to_have_count(4)

    page.get_by_label("Search parameters").fill("layers.3 QKV")

    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("decoder.layers.3.self_attention.linear_qkv.weight")
    expect(page.locator("#found")).to_have_text("1 of 4")
    page.get_by_label("Search parameters").fill("nothing like it")
    expect(rows).to_have_count(0)
    page.get_by_label("Search parameters").fill("")
    expect(rows).to_have_count(4)


def test_dark_mode_follows_the_system_and_the_button(open_page: Open, demo: Opened) -> None:
    opened = open_page(opened_demo(), color_scheme="dark")
    page = opened.page
    dark, dark_ink = background(page), ink(page)
    opened.keep("dark")

    page.get_by_role("button", name="Light mode").click()

    assert background(page) == background(demo.page) != dark
    assert ink(page) != dark_ink
    expect(page.get_by_role("button", name="Dark mode")).to_be_visible()


def test_the_grid_is_one_tab_stop_with_arrow_keys_inside(open_page: Open) -> None:
    page = open_page(opened_demo()).page
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    assert page.locator("#rank-grid .cell[tabindex='0']").count() == 1

    page.locator("#rank-grid .cell[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")

    focused = page.locator("#rank-grid .cell:focus")
    expect(focused).to_have_attribute("data-ranks", "6")
    assert focused.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("#chosen-rank h3")).to_have_text("Rank 6, tp0pp1dp1")
    assert page.locator("#rank-grid .cell[tabindex='0']").count() == 1


def test_every_control_and_picture_has_a_name(demo: Opened) -> None:
    page = demo.page
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, [role=img], [role=region], nav, aside")]
            .filter((each) => !(each.textContent.trim() && each.matches("button")) && !each.getAttribute("aria-label")
                && !each.getAttribute("aria-labelledby") && !each.labels?.length)
            .map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert nameless == []


def test_a_narrow_screen_needs_no_sideways_scrolling(open_page: Open) -> None:
    opened = open_page(opened_demo(), viewport={"width": 390, "height": 844}, has_touch=True)
    opened.keep("narrow")
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 390


def test_paper_is_light_whatever_the_screen_was(open_page: Open, tmp_path: Path) -> None:
    page = open_page(opened_demo(), color_scheme="dark").page
    dark = ink(page)
    page.evaluate("addEventListener('beforeprint', () => setTimeout(() => (window.printed = root.dataset.theme)))")

    page.pdf(path=tmp_path / "page.pdf", format="A4")

    assert (tmp_path / "page.pdf").stat().st_size > 10_000
    assert page.evaluate("root.dataset.theme ?? 'system'") == "system"
    assert ink(page) == dark


def test_what_matters_is_read_without_scripts(open_page: Open) -> None:
    page = open_page(opened_demo(), java_script_enabled=False).page
    expect(page.locator("h1")).to_contain_text("made the first NaN")
    expect(page.locator("#verdict")).to_contain_text("halve --lr")
    expect(page.locator("#rank-grid .cell")).to_have_count(8)


def test_sixteen_thousand_ranks_open_cell_by_cell(open_page: Open) -> None:
    opened = open_page(opened_large_run())
    page = opened.page
    chosen = page.locator("#chosen-rank")
    expect(chosen).to_contain_text("8 ranks, the worst first")
    expect(chosen).to_contain_text("Rank 5000, tp0pp4dp113")

    page.get_by_role("button", name="112 ranks").first.click()
    expect(chosen.locator("button")).to_have_count(112)
    chosen.get_by_role("button", name="rank 1023, ").click()

    expect(chosen).to_contain_text("Rank 1023, tp7pp0dp127")
    opened.keep("large")
