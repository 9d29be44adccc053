"""Run scripts where nothing can be imported but torch, what torch itself needs, safetensors and the standard library.

    python -I only_torch.py SCRIPT [ARGUMENT ...] [-- SCRIPT [ARGUMENT ...]]

Prints one line of JSON per script: exit code and output. All run in this process, since torch takes long to import.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import re
import runpy
import sys
from collections.abc import Iterator
from typing import Any


def as_written(name: str) -> str:
    """One spelling of a package's name."""
    return name.lower().replace("-", "_")


def needed_by(package: str, seen: set[str]) -> set[str]:
    """A package and all it requires, extras left out."""
    if package not in seen:
        seen.add(package)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for line in importlib.metadata.requires(package) or []:
                if "extra ==" not in line:
                    needed_by(as_written(re.split(r"[\s;<>=!\[~(]", line, maxsplit=1)[0]), seen)
    return seen


def allowed_modules() -> set[str]:
    """Top-level modules that may be imported."""
    packages = needed_by("torch", set())
    found = {"torch", "safetensors", "torchgen", "functorch", *sys.stdlib_module_names}
    for module, owners in importlib.metadata.packages_distributions().items():
        if packages & set(map(as_written, owners)):
            found.add(module)
    return found


class Filter:
    """Refuses every other top-level module; the first of the finders."""

    def __init__(self) -> None:
        self.allowed = allowed_modules()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Say that a module is not there."""
        if path is None and name.partition(".")[0] not in self.allowed and not name.startswith("__editable__"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def commands(words: list[str]) -> Iterator[list[str]]:
    """Split at --."""
    command: list[str] = []
    for word in [*words, "--"]:
        if word != "--":
            command.append(word)
        elif command:
            yield command
            command = []


def main() -> None:
    """Run each script as if it were called by itself."""
    sys.meta_path.insert(0, Filter())  # type: ignore[arg-type]
    for name in ("megatron_nanguard", "megatron", "orjson", "click", "numpy.nonsense"):
        try:
            __import__(name)
        except ModuleNotFoundError:
            continue
        raise SystemExit(f"{name} can be imported")
    for command in list(commands(sys.argv[1:])):
        sys.argv = command
        output, code = io.StringIO(), 0
        with contextlib.redirect_stdout(output):
            try:
                runpy.run_path(command[0], run_name="__main__")
            except SystemExit as left:
                code = int(left.code or 0)
        print(json.dumps([code, output.getvalue()]), flush=True)


if __name__ == "__main__":
    main()
