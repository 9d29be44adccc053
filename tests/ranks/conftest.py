"""One import of torch and Megatron for all tests that run several ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from megatron_nanguard.cpurun.server import Server


@pytest.fixture(scope="session")
def ranks() -> Iterator[Server]:
    """The import server; a job is stock Megatron unless it asks for `in_rank="megatron_nanguard:enable"`."""
    server = Server.start()
    yield server
    server.stop()
