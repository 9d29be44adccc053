"""The diff in patches/ inserts the import as line 1 of any pretrain_gpt.py, and comes off again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from megatron_nanguard.cli.patch import LINE

DIFF = Path(__file__).parents[2] / "patches" / "pretrain_gpt.diff"

# The first lines of two tags.
HEADS = {
    "0.8.0": '# Copyright (c) 2023, NVIDIA CORPORATION.  All rights reserved.\n"""Pretrain GPT."""\n\nimport os\n',
    "0.19.0": "# Copyright (c) 2025 NVIDIA CORPORATION & AFFILIATES. All rights reserved.\n\nimport time\n",
}


def apply(folder: Path, *options: str) -> None:
    """Run `git apply` on the diff in a repository."""
    subprocess.run(["git", "-C", str(folder), "apply", "--unidiff-zero", *options, str(DIFF)], check=True)


@pytest.mark.parametrize("tag", HEADS)
def test_the_diff_fits_every_release_and_comes_off_again(tmp_path: Path, tag: str) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    script = tmp_path / "pretrain_gpt.py"
    script.write_text(HEADS[tag], encoding="utf-8")
    apply(tmp_path)
    assert script.read_text(encoding="utf-8") == f"{LINE}\n{HEADS[tag]}"
    apply(tmp_path, "--reverse")
    assert script.read_text(encoding="utf-8") == HEADS[tag]
