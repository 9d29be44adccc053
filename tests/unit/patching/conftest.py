"""A host package of real modules, written for one test and importable under a name of its own."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

numbers = itertools.count()

NORMS = """
from functools import partial

def norm(values, scale=1):
    return scale * sum(values)

class Optimizer:
    factor = 2

    def step(self, amount, *, twice=False):
        return self.factor * amount * (2 if twice else 1)

class Chained(Optimizer):
    pass

class_norm = 3
"""

TRAINING = """
from {package}.norms import norm

def train(values):
    return norm(values)
"""


class Host:
    """A package on disk, imported module by module."""

    def __init__(self, root: Path) -> None:
        # An import hook cannot be taken back, so every test has a package of its own.
        self.package = f"fake_host_{next(numbers)}"
        self._folder = root / self.package
        self._folder.mkdir()
        self.write("__init__", "")
        self.write("norms", NORMS)
        self.write("training", TRAINING)

    def write(self, name: str, text: str) -> None:
        """Write one module; ``{package}`` in it is the name of the package."""
        (self._folder / f"{name}.py").write_text(text.replace("{package}", self.package))
        importlib.invalidate_caches()

    def load(self, name: str) -> ModuleType:
        """Import one module."""
        return importlib.import_module(f"{self.package}.{name}")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """The package; gone from the process afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    found = Host(tmp_path)
    yield found
    for name in [name for name in sys.modules if name.split(".")[0] == found.package]:
        del sys.modules[name]
