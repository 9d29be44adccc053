"""A copy of the project in which a test follows a recipe of CONTRIBUTING.md, and then runs the tests of the copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
COPIED: Final = ("megatron_nanguard", "tests", "scripts", "docs", "patches", "pyproject.toml")


def recipe(title: str) -> str:
    """Return the paragraph of CONTRIBUTING.md that begins with `**title.**`."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition(f"\n**{title}.** ")[2].partition("\n\n")[0]


def code_words(text: str) -> list[str]:
    """List what stands between backquotes in a text: files, names and tables that a recipe tells to use."""
    return re.findall(r"`([^`]+)`", text)


class ProjectCopy:
    """The files of the project in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "project"
        self.root.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name)
            else:
                shutil.copy(source, self.root / name)
        for page in ROOT.glob("*.md"):
            shutil.copy(page, self.root)

    def write(self, path: str, text: str) -> None:
        """Add a file.

        Args:
            path: relative to the project; it must not be there.
        """
        with (self.root / path).open("x", encoding="utf-8") as file:
            file.write(text)

    def insert(self, path: str, before: str, text: str) -> None:
        """Add lines to a file, before the only line that begins with `before`."""
        file = self.root / path
        lines = file.read_text(encoding="utf-8").split("\n")
        (number,) = (number for number, line in enumerate(lines) if line.startswith(before))
        file.write_text("\n".join([*lines[:number], text.rstrip("\n"), *lines[number:]]), encoding="utf-8")

    def python(self, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy, with the package of the copy and the given environment variables."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), **variables}
        return subprocess.run(
            [sys.executable, *args], cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )

    def check(self, *tests: str) -> None:
        """Run tests of the copy; all must pass."""
        done = self.python("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
