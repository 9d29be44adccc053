"""Megatron releases as source text: wheels that are downloaded once and parsed, never imported."""

from __future__ import annotations

import ast
import fcntl
import importlib.metadata
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

CACHE = Path(__file__).parents[2] / ".cache" / "wheels"
DISTRIBUTION = "megatron-core"
INSTALLED = importlib.metadata.version(DISTRIBUTION)
# First, middle and last release without megatron.training in the wheel; the installed one has both halves.
RELEASES = ("0.8.0", "0.12.3", "0.16.1", INSTALLED)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Found = tuple[ast.AST, ...]


@dataclass(frozen=True)
class Release:
    """The Python files of one release.

    Attributes:
        version: of the distribution.
        files: path inside the wheel -> source text.
    """

    version: str
    files: dict[str, str]

    @property
    def line(self) -> tuple[int, int]:
        """Release line, as the patch-point table counts: `0.12.3` -> (0, 12)."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)

    @cached_property
    def modules(self) -> dict[str, str]:
        """Dotted name -> path inside the wheel."""
        return {dotted(path): path for path in self.files}

    def has_package(self, package: str) -> bool:
        """Whether this wheel ships anything below a package: `megatron.training` came with 0.17."""
        return any(name.startswith(package + ".") for name in self.modules)

    def parameters(self, path: str) -> tuple[str, ...] | None:
        """Names of the parameters of `module:Class.method` or `module:function`; None when it is not defined there.

        Only a definition in that module and in that very class counts, as only those can be patched in place.
        """
        module, _, attribute = path.partition(":")
        if module not in self.modules:
            return None
        nodes: Found = (parse(self.files[self.modules[module]]),)
        for name in attribute.split("."):
            nodes = tuple(found for node in nodes for found in definitions(node) if found.name == name)
        functions = [node for node in nodes if isinstance(node, Function)]
        return parameter_names(functions[0].args) if functions else None

    def importers(self, module: str, name: str) -> set[str]:
        """Places `module:name` that hold a copy, because they import the function by name at module level."""
        return {
            f"{importer}:{alias}"
            for importer, path in self.modules.items()
            if name in self.files[path]
            for source, original, alias in names_imported(parse(self.files[path]), importer, path)
            if (source, original) == (module, name)
        }


def parse(text: str) -> ast.Module:
    """The syntax tree of a source of the host; Python's warnings about its escape sequences are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return ast.parse(text)


def dotted(path: str) -> str:
    """Module name of a path: `megatron/core/optimizer/__init__.py` -> `megatron.core.optimizer`."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def definitions(scope: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions defined in a module or class, those under `if` and `try` included."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef | Function):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            yield from definitions(node)


def parameter_names(arguments: ast.arguments) -> tuple[str, ...]:
    """Names in the order of the signature."""
    return tuple(each.arg for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])


def names_imported(tree: ast.Module, module: str, path: str) -> Iterator[tuple[str, str, str]]:
    """Module, name and local name of every `from ... import ...` outside functions."""
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    inside = {id(child) for node in ast.walk(tree) if isinstance(node, Function) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in inside:
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            source = ".".join(filter(None, [base, node.module]))
            yield from ((source, alias.name, alias.asname or alias.name) for alias in node.names)


@cache
def release(version: str) -> Release:
    """The sources of one release: the installed one from disk, any other from its wheel."""
    files = installed_files() if version == INSTALLED else wheel_files(download(version))
    return Release(version, files)


def installed_files() -> dict[str, str]:
    """Sources of the release in this environment."""
    paths = importlib.metadata.files(DISTRIBUTION) or ()
    return {str(path): path.read_text("utf-8") for path in paths if is_source(str(path))}


def wheel_files(wheel: Path) -> dict[str, str]:
    """Sources inside a wheel."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if is_source(name)}


def is_source(path: str) -> bool:
    """Whether a file of the distribution is a Python module of Megatron."""
    return path.startswith("megatron/") and path.endswith(".py")


def download(version: str) -> Path:
    """The wheel of one release, from the cache or else from the package registry."""
    pattern = f"megatron_core-{version}-*.whl"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests run in several processes
        if not list(CACHE.glob(pattern)):
            target = ["--no-deps", "--only-binary=:all:", "--python-version=3.10"]
            target += [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 24, 28)]
            command = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={CACHE}", *target]
            subprocess.run([*command, f"{DISTRIBUTION}=={version}"], check=True)
    return next(CACHE.glob(pattern))
