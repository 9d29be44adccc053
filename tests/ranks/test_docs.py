"""The commands of the documentation are run, in the order of the pages, on the incident that the demo leaves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import Block, blocks

pytestmark = pytest.mark.ranks

DEMO = "nanguard demo --dir nanguard"
RUNNABLE = list({block.text: block for block in blocks() if block.can_run}.values())


def shell(block: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run commands as a reader would, with our environment's programs first."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NANGUARD")}
    path = f"{Path(sys.executable).parent}:{environment['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", block]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**environment, "PATH": path}
    )


@pytest.fixture(scope="module")
def after_the_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory in which the demo has run, by the command in the pages."""
    assert [block for block in RUNNABLE if block.text.strip() == DEMO], f"no page shows {DEMO!r}"
    folder = tmp_path_factory.mktemp("reader")
    done = shell(DEMO, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize(
    "block",
    [block for block in RUNNABLE if block.text.strip() != DEMO],
    ids=lambda block: f"{block.page}: {block.text.splitlines()[0][:40]}",
)
def test_the_commands_of_a_page_do_what_it_says(block: Block, after_the_demo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    shutil.copytree(after_the_demo, folder)

    done = shell(block.text, folder)

    assert done.returncode == block.exit_code, done.stdout + done.stderr


def test_the_readme_shows_what_the_demo_prints(after_the_demo: Path) -> None:
    [shown] = [block.text for block in blocks() if block.page == "README.md" and "\nVerdict\n" in block.text]
    told = told_alike(shell("nanguard report nanguard", after_the_demo).stdout)

    lines = [line for line in told_alike(shown.partition("\nVerdict\n")[2]) if "[...]" not in line]

    assert len(lines) > 10
    assert [line for line in lines if line not in told] == []


def told_alike(text: str) -> list[str]:
    """Lines without what differs from machine to machine: host, magnitudes, source lines of Megatron."""
    for varying in (r"host \S+\)", r"[\d.]+e-\d+", r"\.py:\d+"):
        text = re.sub(varying, "#", text)
    return text.splitlines()
