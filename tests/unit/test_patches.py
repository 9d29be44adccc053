"""The diff in patches/ fits the pretrain script of the tag in its name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

DIFF = Path(__file__).parents[2] / "patches" / "pretrain_gpt_core_v0.19.0.diff"

# What the tag has on the lines that a hunk can see; the lines above and below them play no part.
FIRST_LINE = 7
LINES = [
    "",
    "_PROGRAM_START_TIME = time.time()",
    "",
    "import json",
    "",
    "# Suppress warnings on all ranks but rank 0.",
]


def host_repository(folder: Path, lines: list[str]) -> Path:
    """A repository whose pretrain_gpt.py has these lines where the tag has them; returns the script."""
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    script = folder / "pretrain_gpt.py"
    above = ["# above"] * (FIRST_LINE - 1)
    script.write_text("\n".join([*above, *lines, "# below", ""]), encoding="utf-8")
    return script


def apply(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `git apply` on the diff in a repository."""
    command = ["git", "-C", str(folder), "apply", *options, str(DIFF)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_diff_adds_the_import_ahead_of_every_other_but_time(tmp_path: Path) -> None:
    script = host_repository(tmp_path, LINES)
    assert apply(tmp_path, "--check").returncode == 0
    assert apply(tmp_path).returncode == 0
    assert script.read_text(encoding="utf-8").splitlines()[FIRST_LINE - 1 :] == [
        "",
        "_PROGRAM_START_TIME = time.time()",
        "",
        "import megatron_nanguard  # noqa: F401",
        "import json",
        "",
        "# Suppress warnings on all ranks but rank 0.",
        "# below",
    ]


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_the_diff_is_refused_where_the_script_is_another(tmp_path: Path, missing: int) -> None:
    host_repository(tmp_path, [*LINES[:missing], "# something else", *LINES[missing + 1 :]])
    assert apply(tmp_path, "--check").returncode == 1
