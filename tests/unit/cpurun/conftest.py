"""A server without Megatron, for scripts of a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.import_server import Finished, Server

Run = Callable[..., Finished]


@pytest.fixture(scope="session")
def bare() -> Iterator[Server]:
    """A server that imported torch alone."""
    server = Server.start(modules=("torch",))
    yield server
    server.stop()


@pytest.fixture
def run(bare: Server, tmp_path: Path) -> Run:
    """Run the text of a script on some ranks; `rank` is defined in it."""

    def run_text(nproc: int, text: str, *args: str, **options: object) -> Finished:
        script = tmp_path / "script.py"
        script.write_text(f'import os, sys, time\nrank = int(os.environ["RANK"])\n{text}\n', encoding="utf-8")
        options.setdefault("linger", 0.2)
        return bare.run(nproc, script, args, cwd=tmp_path, **options)  # type: ignore[arg-type]

    return run_text
