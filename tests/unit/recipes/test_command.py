"""The recipe for a command: every step of the paragraph in CONTRIBUTING.md, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.unit.recipes.project_copy import ProjectCopy, code_words, recipe

COMMAND = '''"""`nanguard hosts DIR`: the number of hosts of a run."""

from __future__ import annotations

from pathlib import Path

import click

from megatron_nanguard.cli import say
from megatron_nanguard.postmortem.loading import load_incident


@click.command("hosts")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def command(directory: Path) -> None:
    """Print the number of hosts of the newest incident in DIR.

    Exit code 4 when there is none.

    \\b
    Example:
      nanguard hosts nanguard
    """
    say(str(load_incident(directory).incident.num_hosts))
'''
TEST = '''"""`nanguard hosts`: output and exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.hostile import write_run
from tests.unit.cli.leaving import leave


def test_the_hosts_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)

    assert leave(capsys, "hosts", tmp_path) == (0, "1\\n", "")


def test_without_an_incident_the_exit_code_is_that_of_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = leave(capsys, "hosts", tmp_path)

    assert (code, out) == (4, "")
    assert err.startswith(f"nanguard: {tmp_path} is no directory of --nanguard-dir")
'''


def test_a_command_that_follows_the_recipe_passes_the_tests(tmp_path: Path) -> None:
    assert code_words(recipe("A command")) == [
        "cli/<command>.py",
        "command",
        "Example",
        "nanguard <command>",
        "Exit code",
        "COMMANDS",
        "cli/__init__.py",
        "README.md",
        "README.zh-CN.md",
        "NanguardError",
        "BRANCHES",
        "tests/unit/cli/test_<command>.py",
    ]
    project = ProjectCopy(tmp_path)
    project.write("megatron_nanguard/cli/hosts.py", COMMAND)
    project.insert(
        "megatron_nanguard/cli/__init__.py",
        '    "schema": ',
        '    "hosts": "Count the hosts of a run.",\n',
    )
    project.insert("README.md", "| `nanguard schema NAME` |", "| `nanguard hosts DIR` | counts the hosts |\n")
    project.insert("README.zh-CN.md", "| `nanguard schema NAME` |", "| `nanguard hosts DIR` | 统计主机数 |\n")
    project.write("tests/unit/cli/test_hosts.py", TEST)

    project.check(
        "tests/unit/cli/test_hosts.py",
        "tests/unit/cli/test_frame.py::test_every_command_of_the_table_is_found_under_its_name[hosts]",
        "tests/unit/cli/test_frame.py::test_the_help_of_every_command_has_an_example_that_is_a_command_line[hosts]",
        "tests/unit/cli/test_frame.py::test_help_lists_the_table_in_its_order",
        "tests/unit/test_architecture.py::test_module_imports_downwards_only[megatron_nanguard.cli.hosts]",
        "tests/unit/test_readme.py",
        "tests/unit/test_docs.py::test_the_chinese_readme_has_what_the_english_one_has",
    )


def test_a_command_that_is_not_in_the_readme_is_found(tmp_path: Path) -> None:
    project = ProjectCopy(tmp_path)
    project.insert("megatron_nanguard/cli/__init__.py", '    "schema": ', '    "hosts": "Count.",\n')

    done = project.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_readme.py")

    assert done.returncode == 1
    assert "test_every_command_is_mentioned" in done.stdout
