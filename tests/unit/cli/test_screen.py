"""`nanguard screen` and `grad-check`: what cannot be used is one line and exit code 2, before any rank is met."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from megatron_nanguard.cli import main
from megatron_nanguard.cli.screen import _write
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.machine.screening import Screening


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    """Return the exit code and the text on stderr."""
    with pytest.raises(SystemExit) as left:
        main(list(words))
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize("words", [("screen",), ("grad-check", "--model", "torch:nn", "--batch", __file__)])
def test_outside_of_torchrun_the_error_says_how_to_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    code, line = said(capsys, *words)
    assert (code, line.count("\n")) == (2, 1)
    assert line.startswith("nanguard: RANK is not set, expected torchrun's environment: start it with torchrun")


def test_a_layout_that_does_not_fit_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    code, line = said(capsys, "screen", "--tp", "3")
    assert (code, line.count("\n")) == (2, 1)
    assert "--tp 3 x --cp 1 x --pp 1 is 3, which does not divide the 8 ranks" in line


def test_an_unwritable_json_file_is_refused_before_the_checks_begin(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, line = said(capsys, "screen", "--json", str(tmp_path / "nowhere" / "file.json"))
    assert (code, line.count("\n")) == (2, 1)
    assert f"the directory {tmp_path / 'nowhere'} cannot be written" in line


@pytest.mark.parametrize("option", [("--tp", "0"), ("--deadline", "0"), ("--memory-share", "0.95")])
def test_a_value_out_of_range_is_a_usage_error(capsys: pytest.CaptureFixture[str], option: tuple[str, str]) -> None:
    code, lines = said(capsys, "screen", *option)
    assert code == 2
    assert option[0] in lines


def test_a_result_that_cannot_be_written_is_an_error_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = ParallelSizes(world=1, tp=1, cp=1, ep=1, dp=1, pp=1, expert_tp=1, expert_dp=1)
    result = Screening(started="", seconds=0.0, sizes=sizes, outliers=(), hints=(), notes=(), ranks=())
    (tmp_path / "file.json").mkdir()
    _write(tmp_path / "file.json", result)
    assert capsys.readouterr().err == f"nanguard: --json {tmp_path / 'file.json'} cannot be written: Is a directory\n"
    _write(tmp_path / "other.json", result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.json", "other.json"]


@pytest.mark.parametrize("words", [("screen",), ("grad-check", "--model", "torch:nn", "--batch", __file__)])
def test_without_torch_the_error_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    for name in [name for name in sys.modules if name.startswith("megatron_nanguard.screening")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, line = said(capsys, *words)
    assert (code, line.count("\n")) == (1, 1)
    assert "where torch is installed: " in line
