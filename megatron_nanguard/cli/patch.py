"""`nanguard patch TREE`: write the import into the training scripts of a checkout, or take it out again.

added    /src/Megatron-LM/pretrain_gpt.py:24
has it   /src/Megatron-LM/pretrain_bert.py:7
"""

from __future__ import annotations

import ast
import codecs
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from megatron_nanguard.cli import say
from megatron_nanguard.errors import SettingsError

LINE = "import megatron_nanguard  # noqa: F401"
"""What is inserted, ahead of the first import from outside of the standard library."""

HOSTS = ("megatron", "mindspeed", "mindspeed_llm")
"""A script that imports one of these trains with Megatron."""


@click.command("patch")
@click.argument("tree", metavar="TREE", type=click.Path(path_type=Path))
@click.option("--revert", is_flag=True, help="take the line out again")
@click.option("--check", is_flag=True, help="change nothing; exit code 1 if a script would change")
def command(tree: Path, revert: bool, check: bool) -> int:
    """Insert `import megatron_nanguard` into the training scripts of TREE, a checkout of Megatron-LM or one script.

    A training script lies at the top of TREE, imports Megatron and runs something when it is the main program. The
    line comes ahead of the first import from outside of the standard library. A script that has it is left as it is.

    \b
    Examples:
      nanguard patch Megatron-LM
      nanguard patch Megatron-LM --check
      nanguard patch Megatron-LM/pretrain_gpt.py --revert
    """
    found = [script for path in _candidates(tree) if (script := _read(path)) is not None]
    if not found:
        raise SettingsError(f"{tree} holds no training script that imports Megatron at its top")
    changed = 0
    for script in found:
        edited, number = _without(script) if revert else _with(script)
        state = "without" if revert else "has it"
        if edited != script.data:
            changed += 1
            state = ("removed" if revert else "added") if not check else "to do"
            if not check:
                _write(script.path, edited)
        say(f"{state:8} {script.path}{f':{number}' if number else ''}")
    return int(check and changed > 0)


@dataclass(frozen=True)
class Script:
    """A training script: its bytes, so that line ends and encoding stay, and its syntax tree."""

    path: Path
    data: bytes
    body: tuple[ast.stmt, ...]

    @property
    def mark(self) -> bytes:
        """The byte order mark that some editors put in front."""
        return codecs.BOM_UTF8 if self.data.startswith(codecs.BOM_UTF8) else b""

    @property
    def lines(self) -> list[bytes]:
        """The lines behind the mark."""
        return self.data.removeprefix(self.mark).splitlines(keepends=True)

    def imports_of_ours(self) -> Iterator[ast.stmt]:
        """Statements at module level that import this package."""
        return (statement for statement in self.body if "megatron_nanguard" in _roots(statement))


def _candidates(tree: Path) -> list[Path]:
    if tree.is_file():
        return [tree]
    if not tree.is_dir():
        raise SettingsError(f"{tree} is neither a directory nor a script")
    return sorted(tree.glob("*.py"))


def _read(path: Path) -> Script | None:
    """Read a script; None if it does not train with Megatron.

    Raises:
        SettingsError: it cannot be read, or is no Python source.
    """
    try:
        data = path.read_bytes()
        body = tuple(_parse(data).body)
    except (OSError, SyntaxError, ValueError) as error:
        raise SettingsError(f"{path} cannot be patched: {error}") from None
    imported = {root for statement in body for root in _roots(statement)}
    is_program = any(isinstance(each, ast.If) and "__main__" in ast.unparse(each.test) for each in body)
    return Script(path, data, body) if is_program and imported & set(HOSTS) else None


def _parse(data: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escape sequences in the host's strings
        return ast.parse(data)


def _roots(statement: ast.stmt) -> set[str]:
    """Top packages that a statement imports, also inside `if` and `try`; not those of functions and classes."""
    if isinstance(statement, ast.Import):
        return {alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.ImportFrom):
        return {(statement.module or "").partition(".")[0]}
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return set()
    children = ast.iter_child_nodes(statement)
    nested = [child for each in children for child in ([each] if isinstance(each, ast.stmt) else _handled(each))]
    return {root for child in nested for root in _roots(child)}


def _handled(node: ast.AST) -> list[ast.stmt]:
    return node.body if isinstance(node, ast.ExceptHandler) else []


def _with(script: Script) -> tuple[bytes, int]:
    """The text of the script with the import, and the number of its line."""
    there = next(script.imports_of_ours(), None)
    if there is not None:
        return script.data, there.lineno
    standard = sys.stdlib_module_names | {"__future__"}
    position = next(index for index, each in enumerate(script.body) if _roots(each) - standard)
    while position and script.body[position - 1].end_lineno == script.body[position].lineno:
        position -= 1  # several statements on one line
    number = script.body[position].lineno
    lines = script.lines
    end = b"\r\n" if lines[number - 1].endswith(b"\r\n") else b"\n"
    lines.insert(number - 1, LINE.encode() + end)
    return script.mark + b"".join(lines), number


def _without(script: Script) -> tuple[bytes, int]:
    """The text of the script without the lines that hold the import alone, and the number of the first one."""
    lines = script.lines
    own = [each.lineno for each in script.imports_of_ours() if lines[each.lineno - 1].split(b"#")[0].split() == _WORDS]
    kept = [line for number, line in enumerate(lines, 1) if number not in own]
    return script.mark + b"".join(kept), own[0] if own else 0


_WORDS = [b"import", b"megatron_nanguard"]


def _write(path: Path, data: bytes) -> None:
    """Replace the file in one step, so that a job that starts now reads either text; its permissions stay."""
    path = path.resolve()
    partial = path.with_name(f".{path.name}.nanguard")
    try:
        partial.write_bytes(data)
        partial.chmod(path.stat().st_mode & 0o7777)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SettingsError(f"{path} cannot be written: {error}") from None
