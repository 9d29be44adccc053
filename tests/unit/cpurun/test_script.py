from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_nanguard import cpurun
from megatron_nanguard.cpurun.errors import LaunchRefused
from megatron_nanguard.cpurun.script import run_script


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    yield
    sys.argv, sys.path[:] = argv, path


def script(folder: Path, text: str) -> str:
    (folder / "beside.py").write_text("NAME = 'neighbour'", encoding="utf-8")
    (folder / "script.py").write_text(text, encoding="utf-8")
    return str(folder / "script.py")


def test_a_script_sees_its_arguments_and_its_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, "import sys, beside\nprint(sys.argv, beside.NAME, __name__)")

    assert run_script(path, ["--x", "1"]) == 0
    assert capsys.readouterr().out == f"{[path, '--x', '1']} neighbour __main__\n"


@pytest.mark.parametrize(
    ("text", "code", "stderr"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
    ],
)
def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, stderr: str) -> None:
    failed: list[int] = []

    assert run_script(script(tmp_path, text), [], lambda: failed.append(1)) == code
    assert capsys.readouterr().err == stderr
    assert len(failed) == (code != 0)


def test_an_exception_is_printed_after_on_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    code = run_script(script(tmp_path, "1 / 0"), [], lambda: seen.append(capsys.readouterr().err))

    assert code == 1
    assert seen == [""]
    assert capsys.readouterr().err.endswith("ZeroDivisionError: division by zero\n")


def test_without_torchruns_environment_the_error_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)

    with pytest.raises(LaunchRefused, match="nanguard cpu-run --nproc N SCRIPT"):
        cpurun.run_under_torchrun("script.py", [])
