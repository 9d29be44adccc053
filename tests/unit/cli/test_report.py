"""`nanguard report`: output, exit code, files, and what it imports."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from megatron_nanguard.cli.report import MIN_FILES_FOR_BAR, check_page, with_progress, write_page
from megatron_nanguard.errors import SettingsError
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.json.record_file import from_json
from tests.unit.cli.leaving import leave
from tests.unit.diagnosis.factories import sink, to_origin, trace, traced_origin
from tests.unit.factories import demo_postmortem, incident
from tests.unit.report.factories import report_text

JUDGED = incident(causes=(RankedCause("numerics", 0.5, ("a fact",), (), (), ""),))


def write_incident(root: Path, step: int = 3) -> Path:
    record = replace(JUDGED, step=step)
    written = RunDirectory(root, "run", print).write(f"incidents/step_{step:08d}/incident.json", record)
    assert written is not None
    return written.parent


def write_ranks(root: Path, *ranks: int) -> Path:
    run = RunDirectory(root, "run", print)
    for rank in ranks:
        run.write_postmortem("incidents/step_00000003", demo_postmortem(rank))
    return run.path / "incidents/step_00000003"


def test_the_incident_under_a_directory_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_incident(tmp_path)

    left = leave(capsys, "report", tmp_path)

    assert left == (0, report_text(JUDGED, directory), "")


def test_files_of_ranks_that_the_run_did_not_merge_are_merged_and_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ranks(tmp_path, *range(8))
    seen = trace(5, origins=(traced_origin(),), sinks=(sink(to_origin()),))
    RunDirectory(tmp_path, "run", print).write("incidents/step_00000003/trace00005_tp1pp1dp0.json", seen)

    code, out, _ = leave(capsys, "report", tmp_path)

    assert code == 0
    assert "rank 5 (tp1pp1dp0, host node1) made the first NaN: log in decoder.layers.3.mlp" in " ".join(out.split())
    assert "the run ended before the files of its ranks were merged" in out


def test_a_subset_of_the_ranks_is_merged_and_the_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ranks(tmp_path, 1, 4, 5)

    code, out, _ = leave(capsys, "report", tmp_path)

    assert code == 0
    assert "no readable file          0, 2, 3, 6, 7\n" in out


def test_a_step_picks_an_incident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (3, 20):
        write_incident(tmp_path, step=step)

    assert orjson.loads(leave(capsys, "report", tmp_path, "--json").out)["step"] == 20
    assert orjson.loads(leave(capsys, "report", tmp_path, "--json", "--step", 3).out)["step"] == 3
    assert leave(capsys, "report", tmp_path, "--step", 4) == (
        4,
        "",
        f"nanguard: {tmp_path} holds no incident of step 4; it holds step 20 (run), step 3 (run)\n",
    )


def test_json_is_the_merged_incident_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ranks(tmp_path, *range(8))

    code, out, err = leave(capsys, "report", tmp_path, "--json")

    merged = from_json(Incident, out.encode())
    assert (code, err, merged.ranks.bad_before) == (0, "", (0, 1, 4, 5))
    assert merged.causes[0].cause == "undecided"


def test_nothing_is_written_into_the_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_ranks(tmp_path, *range(8))
    before = sorted(directory.rglob("*"))

    leave(capsys, "report", tmp_path)
    leave(capsys, "report", tmp_path, "--html", tmp_path / "page.html")

    assert sorted(directory.rglob("*")) == before


def test_a_page_is_written_beside_json_if_both_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_incident(tmp_path)
    page = tmp_path / "page.html"

    code, out, err = leave(capsys, "report", tmp_path, "--html", page, "--json")

    assert (code, err) == (0, f"wrote {page}\n")
    assert orjson.loads(out)["step"] == 3
    assert page.read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "runs"]


def test_a_page_that_exists_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_incident(tmp_path)
    page = tmp_path / "page.html"
    page.write_text("mine")

    assert leave(capsys, "report", tmp_path, "--html", page) == (
        2,
        "",
        f"nanguard: --html: {page} exists; give another name, or --force to write over it\n",
    )
    assert page.read_text() == "mine"
    assert leave(capsys, "report", tmp_path, "--html", page, "--force").code == 0
    assert page.read_text() != "mine"


def test_a_directory_without_incident_exits_with_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = leave(capsys, "report", tmp_path)

    assert (code, out, err.count("\n")) == (4, "", 1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "Missing argument 'DIR'"),
        (("x", "--step", "three"), "Invalid value for '--step': 'three' is not a valid integer range"),
        (("x", "--step", "-1"), "Invalid value for '--step': -1 is not in the range x>=0"),
        (("x", "--htm", "y"), "No such option"),
    ],
)
def test_bad_options_are_named(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str) -> None:
    code, _, err = leave(capsys, "report", *words)

    assert code == 2
    assert complaint in err


def on_terminal(*words: object, **environment: str) -> str:
    """Run a command whose two outputs are a terminal, and give back what the terminal was sent."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "megatron_nanguard", *map(str, words)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, **environment}) as process:
        os.close(theirs)
        sent = b""
        # Linux ends a terminal that no process has open any more with an error.
        while part := _read(ours):
            sent += part
    os.close(ours)
    assert process.returncode == 0
    return sent.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(("words", "environment"), [(("--no-color",), {}), ((), {"NO_COLOR": "1"})])
def test_colours_are_for_a_terminal_and_can_be_refused(
    tmp_path: Path, words: tuple[str, ...], environment: dict[str, str]
) -> None:
    write_incident(tmp_path)
    red = "\x1b[1;31m"

    assert red in on_terminal("report", tmp_path, TERM="xterm-256color")
    assert red not in on_terminal("report", tmp_path, *words, TERM="xterm-256color", **environment)


def test_a_progress_bar_counts_the_files_and_is_removed(tmp_path: Path) -> None:
    directory = write_ranks(tmp_path, 0)
    for number in range(300):
        (directory / f"rank{100 + number:05d}_x.json").write_text("{")

    assert "reading 301 files of ranks" in on_terminal("report", tmp_path, TERM="xterm")
    done = subprocess.run(
        [sys.executable, "-m", "megatron_nanguard", "report", tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_report_imports_neither_torch_nor_megatron(tmp_path: Path) -> None:
    write_incident(tmp_path)
    command = [sys.executable, "-X", "importtime", "-m", "megatron_nanguard", "report", tmp_path]

    printed = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    loaded = {line.rpartition("|")[2].strip() for line in printed.splitlines()}
    assert {"orjson", "click", "megatron_nanguard.postmortem.loading"} <= loaded
    assert loaded & {"torch", "megatron", "numpy", "rich.console", "plotly", "jinja2"} == set()


def test_a_report_is_written_in_chinese(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path, *range(8))

    _, asked, _ = leave(capsys, "report", tmp_path, "--lang", "zh")
    monkeypatch.setenv("NANGUARD_LANG", "zh")
    _, preset, _ = leave(capsys, "report", tmp_path)

    assert asked == preset
    assert asked.startswith("结论\n  第 3 步：")


def test_an_unknown_language_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = leave(capsys, "report", tmp_path, "--lang", "de")

    assert code == 2
    assert "'de' is not one of 'en', 'zh'" in error


@pytest.mark.parametrize(
    ("make", "name", "complaint"),
    [
        (Path.touch, "page", "--html: DIR/page exists; give another name, or --force to write over it"),
        (Path.mkdir, "page", "--html: DIR/page is not a regular file"),
        (os.mkfifo, "page", "--html: DIR/page is not a regular file"),
        (Path.mkdir, "page/none/page", "--html: DIR/page/none is no directory"),
        (Path.touch, "x" * 300, f"--html: DIR/{'x' * 300} cannot be written: File name too long"),
    ],
    ids=["file", "directory", "pipe", "nowhere", "long"],
)
def test_a_page_that_cannot_be_written_is_refused_with_the_reason(
    tmp_path: Path, make: Callable[[Path], object], name: str, complaint: str
) -> None:
    make(tmp_path / "page")

    with pytest.raises(SettingsError) as caught:
        check_page(tmp_path / name, force=False)

    assert str(caught.value).replace(str(tmp_path), "DIR") == complaint


def test_force_overwrites_only_regular_files(tmp_path: Path) -> None:
    (tmp_path / "page").touch()
    check_page(tmp_path / "page", force=True)
    check_page(tmp_path / "new", force=False)

    with pytest.raises(SettingsError, match="is not a regular file"):
        check_page(tmp_path, force=True)


def test_a_page_written_to_a_symbolic_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "page").touch()
    (tmp_path / "link").symlink_to(tmp_path / "page")

    write_page(tmp_path / "link", "层")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page").read_text(encoding="utf-8") == "层"


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()

    with pytest.raises(SettingsError, match=r"page cannot be written: Is a directory$"):
        write_page(tmp_path / "page", "text")

    assert [path.name for path in tmp_path.iterdir()] == ["page"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "number", "is_shown"),
    [
        (Terminal(), MIN_FILES_FOR_BAR, True),
        (Terminal(), MIN_FILES_FOR_BAR - 1, False),
        (io.StringIO(), MIN_FILES_FOR_BAR, False),
    ],
)
def test_every_name_is_yielded_with_and_without_a_progress_bar(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, number: int, is_shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    names = [str(each) for each in range(number)]

    assert list(with_progress(names, "traces")) == names
    assert (f"reading {number} traces" in stream.getvalue()) == is_shown
