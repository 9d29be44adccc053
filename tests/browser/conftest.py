"""Pages in a real browser: Debian's Chromium, driven by Playwright.

Without a Chromium the tests skip; NANGUARD_REQUIRE_BROWSER=1 makes that a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from megatron_nanguard.report.html.page import report_html
from megatron_nanguard.report.opened_incident import OpenedIncident
from tests.unit.report.html.factories import opened_demo

SCREENSHOTS = Path(__file__).parents[2] / ".cache" / "screenshots"
MISSING = "no chromium on PATH; install it with 'apt-get install --no-install-recommends chromium'"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
)
DRAWN_MILLISECONDS = 45_000


@dataclass
class Opened:
    """A page that was opened, and what it complained about.

    Attributes:
        page: as Playwright has it.
        complaints: errors of the console and of scripts.
        requests: addresses it asked for.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def keep(self, name: str) -> None:
        """Leave a screenshot of the whole page for people to look at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


Open = Callable[..., Opened]
"""(incident, options of a browser context) -> the opened page, its charts drawn."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    chromium = shutil.which("chromium")
    if chromium is None and os.environ.get("NANGUARD_REQUIRE_BROWSER") == "1":
        pytest.fail(MISSING)
    if chromium is None:
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open incidents; an error or a request of a page fails the test at its end."""
    all_opened: list[Opened] = []

    def opening(opened: OpenedIncident, **options: Any) -> Opened:
        all_opened.append(open_in(browser, tmp_path / f"{len(all_opened)}.html", opened, **options))
        return all_opened[-1]

    yield opening
    for opened in all_opened:
        close(opened)


@pytest.fixture(scope="session")
def demo(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The page of the demo on a light screen, shared by tests that change nothing but the chosen rank."""
    opened = open_in(browser, tmp_path_factory.mktemp("demo") / "demo.html", opened_demo())
    yield opened
    close(opened)


def open_in(browser: Browser, file: Path, opened: OpenedIncident, **options: Any) -> Opened:
    """Write the page of an incident, open it, and wait until its charts are drawn."""
    file.write_text(report_html(opened), encoding="utf-8")
    page = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}).new_page()
    opened = Opened(page)
    page.on("console", lambda message: opened.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
    page.on("request", lambda request: opened.requests.append(request.url))
    page.goto(file.as_uri())
    if options.get("java_script_enabled", True):
        page.wait_for_selector("html[data-charts=drawn]", timeout=DRAWN_MILLISECONDS)
    return opened


def close(opened: Opened) -> None:
    """Close a page, and assert that it made no request and had no error."""
    own = opened.page.url
    opened.page.context.close()
    beyond = [url for url in opened.requests if url != own and not url.startswith(("data:", "blob:"))]
    assert (opened.complaints, beyond) == ([], [])
