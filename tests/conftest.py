"""For all tests: the long grid runs on demand, and tests on several ranks get more time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.import_server import Server

RANKS_TIMEOUT_SECONDS = 240


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`; without it the tests marked `long` are left out."""
    parser.addoption("--long", action="store_true", help="run the full grid too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give multi-rank tests their time limit, and leave the long ones out unless asked for."""
    for item in items:
        if item.get_closest_marker("ranks") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(RANKS_TIMEOUT_SECONDS))
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def ranks() -> Iterator[Server]:
    """One import of torch and Megatron for all tests on several ranks.

    A job is stock Megatron unless it asks for `in_rank="megatron_nanguard:enable"`.
    """
    from tests.import_server import Server

    server = Server.start()
    yield server
    server.stop()
