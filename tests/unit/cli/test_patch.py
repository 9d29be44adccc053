"""`nanguard patch` on scripts that begin as those of the releases do, and on hostile ones."""

from __future__ import annotations

import ast
import codecs
from pathlib import Path

import pytest

from megatron_nanguard.cli.patch import LINE
from tests.unit.cli.leaving import leave

MAIN = '\nif __name__ == "__main__":\n    pretrain()\n'

# What pretrain_gpt.py begins with, as text, and the line that is to carry the import.
HEADS = {
    "0.8": ('# Copyright\n"""Pretrain GPT."""\n\nimport os\nimport torch\nfrom megatron.training import pretrain\n', 5),
    "0.13": (
        '# Copyright\n\n"""Pretrain and SFT GPT."""\n\nimport datetime\nimport os\nimport torch\n\n'
        "from functools import partial\nfrom megatron.core import parallel_state\n",
        7,
    ),
    "0.16": (
        '"""Pretrain."""\n\nimport time\n_PROGRAM_START_TIME = time.time()\n\nimport json\nif rank != 0:\n'
        "    import warnings\n\nfrom gpt_builders import gpt_builder\nfrom megatron.core import mpu\n",
        10,
    ),
    "mindspeed": (
        "import torch\nfrom mindspeed_llm import megatron_adaptor\nfrom megatron.training import get_args\n",
        1,
    ),
    "future": ("from __future__ import annotations\nimport megatron.core\n", 2),
    "guarded import": (
        "import os\ntry:\n    import modelopt\nexcept ImportError:\n    pass\nimport megatron.core\n",
        2,
    ),
    "one line": ('"""Doc."""; import os; import torch\nimport megatron.core\n', 1),
}


def script_of(folder: Path, head: str, *, end: str = "\n", mark: bytes = b"") -> Path:
    """A training script that begins like this."""
    path = folder / "pretrain_gpt.py"
    path.write_bytes(mark + (head + MAIN).replace("\n", end).encode())
    return path


@pytest.mark.parametrize(("end", "mark"), [("\n", b""), ("\r\n", b""), ("\n", codecs.BOM_UTF8)])
@pytest.mark.parametrize("name", HEADS)
def test_the_line_goes_ahead_of_the_first_foreign_import_and_comes_out_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, end: str, mark: bytes
) -> None:
    head, number = HEADS[name]
    script = script_of(tmp_path, head, end=end, mark=mark)
    before = script.read_bytes()

    assert leave(capsys, "patch", tmp_path, "--check")[0] == 1
    assert script.read_bytes() == before
    assert leave(capsys, "patch", tmp_path) == (0, f"added    {script}:{number}\n", "")
    patched = script.read_bytes()
    assert patched.removeprefix(mark).decode().split(end)[number - 1] == LINE
    ast.parse(patched)
    assert leave(capsys, "patch", tmp_path) == (0, f"has it   {script}:{number}\n", "")
    assert leave(capsys, "patch", tmp_path, "--check")[0] == 0
    assert script.read_bytes() == patched
    assert leave(capsys, "patch", script, "--revert") == (0, f"removed  {script}:{number}\n", "")
    assert script.read_bytes() == before
    assert leave(capsys, "patch", script, "--revert", "--check") == (0, f"without  {script}\n", "")


def test_a_line_written_by_hand_is_left_and_can_be_taken_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = script_of(tmp_path, "import torch\nimport megatron_nanguard\nimport megatron.core\n")
    assert leave(capsys, "patch", tmp_path) == (0, f"has it   {script}:2\n", "")
    assert leave(capsys, "patch", tmp_path, "--revert")[0] == 0
    assert "nanguard" not in script.read_text()


def test_an_import_that_shares_its_line_is_never_taken_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_of(tmp_path, "import megatron_nanguard, torch\nimport megatron.core\n")
    before = script.read_bytes()
    assert leave(capsys, "patch", tmp_path, "--revert") == (0, f"without  {script}\n", "")
    assert script.read_bytes() == before


def test_modules_and_scripts_of_others_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script_of(tmp_path, "import megatron.core\n")
    others = {
        "gpt_builders.py": "import megatron.core\n",
        "setup.py": "import setuptools" + MAIN,
        "tool.py": "def f():\n    import megatron.core\n" + MAIN,
    }
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    leave(capsys, "patch", tmp_path)
    assert {name: (tmp_path / name).read_text() for name in others} == others


def test_permissions_and_a_link_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_of(tmp_path, "import megatron.core\n")
    script.chmod(0o754)
    link = tmp_path / "tree" / "pretrain.py"
    link.parent.mkdir()
    link.symlink_to(script)
    leave(capsys, "patch", link.parent)
    assert link.is_symlink()
    assert script.stat().st_mode & 0o777 == 0o754
    assert script.read_text().startswith(LINE)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "TREE is neither a directory nor a script"),
        ("import torch\n", "TREE holds no training script that imports Megatron at its top"),
        ("import megatron.core\nprint 'two'\n", "TREE/pretrain_gpt.py cannot be patched: "),
    ],
)
def test_a_tree_without_a_script_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, complaint: str
) -> None:
    tree = tmp_path / "tree"
    if text is not None:
        tree.mkdir()
        script_of(tree, text)
    code, out, err = leave(capsys, "patch", tree)
    assert (code, out) == (2, "")
    assert err.replace(str(tree), "TREE").startswith(f"nanguard: {complaint}")
