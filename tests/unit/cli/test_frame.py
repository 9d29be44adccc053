"""The frame of the command line: the table, the exit codes, what commands print, and `python -m megatron_nanguard`."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from megatron_nanguard.__main__ import as_command
from megatron_nanguard.cli import BRANCHES, COMMANDS, EXIT_CODES, LazyGroup, exit_code_of, main, say
from megatron_nanguard.errors import DrillError, NanguardError, PatchDeclined, PostmortemError, SettingsError
from megatron_nanguard.version import __version__


def python(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter of the same Python."""
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=cwd, check=False)


def add_command(monkeypatch: pytest.MonkeyPatch, command: click.Command) -> None:
    """Put a command of a test's own into the table, under the name `probe`."""
    module = ModuleType("probe")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron_nanguard.cli.probe", module)
    monkeypatch.setitem(COMMANDS, "probe", "A command of this test.")


def exit_code(args: list[str]) -> object:
    """Call the entry point as the console script does, and give back how it leaves."""
    with pytest.raises(SystemExit) as left:
        main(args)
    return left.value.code


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_found_under_its_name(name: str) -> None:
    command = LazyGroup().get_command(click.Context(click.Command("nanguard")), name)
    assert command is not None
    assert command.name == name


def test_help_lists_the_table_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["--help"]) == 0
    printed = capsys.readouterr().out
    listed = printed.partition("Commands:\n")[2].partition("\n\nExit codes:")[0]
    lines = [line.split(None, 1) for line in listed.splitlines()]
    assert [(name, summary) for name, summary in lines] == list(COMMANDS.items())


def test_help_ends_with_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["--help"]) == 0
    codes = capsys.readouterr().out.partition("Exit codes:\n")[2]
    assert [line.split()[0] for line in codes.splitlines() if line[2] != " "] == [str(code) for code in EXIT_CODES]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example_that_is_a_command_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([name, "--help"]) == 0
    printed = capsys.readouterr().out
    first = printed.partition("Example")[2].splitlines()[1]
    assert f"nanguard {name}" in first
    assert "xit code" in printed


def test_help_imports_no_command() -> None:
    code = """if True:
        import sys
        from megatron_nanguard.cli import main
        try:
            main(["--help"])
        except SystemExit:
            heavy = ("torch", "megatron", "numpy", "rich", "jinja2", "orjson")
            loaded = [m for m in sys.modules if m in heavy or m.startswith("megatron_nanguard.cli.")]
            print(*loaded, file=sys.stderr)
    """
    assert python("-c", code).stderr == "\n"


def test_version_is_the_one_of_the_version_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out == f"nanguard {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NanguardError("x"), 1),
        (SettingsError("x"), 2),
        (DrillError("x"), 2),
        (PatchDeclined("x"), 3),
        (PostmortemError("x"), 4),
    ],
)
def test_each_branch_of_the_errors_has_its_exit_code(error: NanguardError, code: int) -> None:
    assert exit_code_of(error) == code


def test_every_error_class_has_an_exit_code() -> None:
    assert {branch for branch, _ in BRANCHES} == {NanguardError, *NanguardError.__subclasses__()}
    assert {code for _, code in BRANCHES} <= EXIT_CODES.keys()


def test_a_nanguard_error_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("probe")
    def command() -> None:
        raise PostmortemError("runs/7: no incident here; name a run directory")

    add_command(monkeypatch, command)
    assert exit_code(["probe"]) == 4
    assert capsys.readouterr().err == "nanguard: runs/7: no incident here; name a run directory\n"


def test_an_exception_of_another_class_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("probe")
    def command() -> None:
        raise ZeroDivisionError

    add_command(monkeypatch, command)
    with pytest.raises(ZeroDivisionError):
        main(["probe"])


@pytest.mark.parametrize("raised", [KeyboardInterrupt, EOFError, BrokenPipeError, ZeroDivisionError])
def test_a_function_that_a_command_returns_runs_outside_click(
    monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    def script() -> None:
        raise raised

    add_command(monkeypatch, click.Command("probe", callback=lambda: script))
    with pytest.raises(raised):
        main(["probe"])


def test_the_exit_code_of_a_command_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    add_command(monkeypatch, click.Command("probe", callback=lambda: sys.exit(65)))
    assert exit_code(["probe"]) == 65


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["reprot"]) == 2
    assert "No such command 'reprot'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "command"),
    [
        ([], []),
        (["--help"], ["--help"]),
        (["--version"], ["--version"]),
        (["report", "runs"], ["report", "runs"]),
        (["train.py", "--nanguard"], ["run", "train.py", "--nanguard"]),
        (["--cpu", "train.py"], ["run", "--cpu", "train.py"]),
        (["./report"], ["run", "./report"]),
    ],
)
def test_a_first_argument_that_is_no_command_is_a_script_to_run(args: list[str], command: list[str]) -> None:
    assert as_command(args) == command


def test_the_module_is_the_console_script() -> None:
    done = python("-m", "megatron_nanguard", "--version")
    assert (done.returncode, done.stdout) == (0, f"nanguard {__version__}\n")


def test_control_characters_are_spelled_out_when_printed(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\n\x1b[2Jtwo")
    say("\x9bthree", err=True)

    assert capsys.readouterr() == ("one\n\\x1b[2Jtwo\n", "\\x9bthree\n")


def test_characters_outside_of_the_output_encoding_are_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(sent, encoding="latin-1"))

    say("é 层")
    sys.stdout.flush()

    assert sent.getvalue() == b"\xe9 \\u5c42\n"
