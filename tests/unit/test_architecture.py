"""Who may import whom: the rows and columns of the package, read from the sources and checked in fresh interpreters.

Rooms import downwards only, never sideways, and the torch-free column never reaches the other one. The rules are told
by `violations`, a pure function over one source text, so that each of them is also shown a source that breaks it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import rooms

PACKAGE = "megatron_nanguard"
ROOT = Path(__file__).parents[2] / PACKAGE

HEIGHTS = rooms.height_of()
TORCH_SIDE = rooms.torch_side()
NO_TORCH = set(HEIGHTS) - TORCH_SIDE

# What starts or inspects a run reaches the torch side, inside a function and when it is called.
STARTS_RUNS = {"cli", "__init__"}
HOST_ROOMS = {"megatron_api", "cpurun"}
ACCELERATOR_ROOMS = {"device", "cpurun"}
ACCELERATORS = ("torch.cuda", "torch.npu", "torch_npu")

UPWARDS = "not downwards"
OTHER_COLUMN = "the torch-free column never imports the other one"
NO_ROOM = "no such room in the table"
SELF_CONTAINED = "cpurun imports no other room"
HOST = "only in megatron_api and cpurun"
ACCELERATOR = "only in device and cpurun"
TORCH = "the torch-free column never imports torch"


def room_of(module: str) -> str:
    """Room of a module by its dotted name: `megatron_nanguard.cli.run` -> `cli`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_part_of(name: str, package: str) -> bool:
    """Whether a dotted name is the package itself or lies inside it."""
    return name == package or name.startswith(package + ".")


def imports(tree: ast.AST, module: str) -> Iterator[tuple[str, int, bool]]:
    """Every import of one module: dotted name, line, and whether it runs only inside a function."""
    inside = {
        id(child)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.walk(function)
    }
    for node in ast.walk(tree):
        for name in _names_imported(node, module):
            yield name, node.lineno, id(node) in inside


def _names_imported(node: ast.AST, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
        # `from package import room` names a room, `from module import function` does not: the module says enough.
        yield from ((f"{base}.{alias.name}" for alias in node.names) if base in (PACKAGE, "torch") else (base,))
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("import_module", "__import__"):
            yield str(node.args[0].value)


def accelerator_uses(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every spelled-out use of an accelerator namespace, such as `torch.cuda.synchronize()`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ACCELERATORS:
            yield ast.unparse(node), node.lineno


def violations(source: str, module: str) -> list[str]:
    """Sentences about what one source may not do, in the order of its lines.

    Args:
        source: text of the module.
        module: dotted name; a package's own file ends in `.__init__`.
    """
    tree = ast.parse(source)
    room = room_of(module)
    found = []
    for name, line, in_function in imports(tree, module):
        judge = _room_reason if is_part_of(name, PACKAGE) else _outside_reason
        if reason := judge(room, name, in_function):
            found.append((line, f"{module}:{line}: {name}: {reason}"))
    if room not in ACCELERATOR_ROOMS:
        found += [(line, f"{module}:{line}: {use}: {ACCELERATOR}") for use, line in accelerator_uses(tree)]
    return [sentence for _, sentence in sorted(found)]


def _room_reason(room: str, name: str, in_function: bool) -> str | None:
    """Why a room may not import another one of ours; None when it may."""
    target = room_of(name)
    if target == room:
        return None
    if room == "cpurun":
        return SELF_CONTAINED
    if room in STARTS_RUNS and in_function:
        return None
    if target not in HEIGHTS:
        return NO_ROOM
    if target in TORCH_SIDE and room in NO_TORCH - {"__init__"}:
        return OTHER_COLUMN
    return UPWARDS if HEIGHTS[target] >= HEIGHTS[room] else None


def _outside_reason(room: str, name: str, in_function: bool) -> str | None:
    """Why a room may not import a module of somebody else; None when it may."""
    if is_part_of(name, "megatron") and room not in HOST_ROOMS:
        return HOST
    if any(is_part_of(name, each) for each in ACCELERATORS) and room not in ACCELERATOR_ROOMS:
        return ACCELERATOR
    if is_part_of(name, "torch") and room in NO_TORCH and not (room in STARTS_RUNS and in_function):
        return TORCH
    return None


def modules() -> list[tuple[str, Path]]:
    """Every module of the package with its file; a package's own file ends in `.__init__`."""
    return [
        (".".join([PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]), path)
        for path in sorted(ROOT.rglob("*.py"))
    ]


def run_fresh(code: str) -> str:
    """Run code in an interpreter that has imported nothing yet, and give back what it prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("module", "path"), [pytest.param(*each, id=each[0]) for each in modules()])
def test_module_imports_downwards_only(module: str, path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), module) == []


def test_every_room_stands_in_the_table_and_no_other() -> None:
    assert {room_of(module) for module, _ in modules()} ^ set(HEIGHTS) == set()


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("records.incident", "from megatron_nanguard.report import text", UPWARDS),
        ("sentinel.flags", "import megatron_nanguard.coordination.vote", UPWARDS),
        ("sentinel.flags", "def f():\n    from megatron_nanguard import guard", UPWARDS),
        ("sentinel.flags", "from ..coordination import vote", UPWARDS),
        (
            "diagnosis.data",
            "def f():\n    import megatron_nanguard.drill",
            OTHER_COLUMN,
        ),
        ("cli.report", "from megatron_nanguard.cpurun import launch", OTHER_COLUMN),
        ("postmortem.loading", "def f():\n    import torch", TORCH),
        ("cli.doctor", "import torch.distributed", TORCH),
        ("__init__", "import torch", TORCH),
        ("guard", "import megatron.core", HOST),
        ("guard", "__import__('megatron.core')", HOST),
        ("guard", "import importlib\nimportlib.import_module('megatron.training')", HOST),
        ("guard", "from torch import cuda", ACCELERATOR),
        ("guard", "import torch\ntorch.cuda.synchronize()", ACCELERATOR),
        ("guard", "import torch_npu", ACCELERATOR),
        ("cpurun.launcher", "from megatron_nanguard.errors import NanguardError", SELF_CONTAINED),
        ("records.incident", "import megatron_nanguard.utils", NO_ROOM),
    ],
)
def test_a_source_that_breaks_a_rule_is_told_so(module: str, source: str, reason: str) -> None:
    found = violations(source, f"{PACKAGE}.{module}")
    assert len(found) == 1
    assert found[0].endswith(f": {reason}")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cli.doctor", "def f():\n    import torch\n    from megatron_nanguard.cpurun import launch"),
        ("cli.run", "def f():\n    import megatron_nanguard"),
        ("records.incident", "from megatron_nanguard.errors import PostmortemError"),
        ("records.incident", "from megatron_nanguard.records.coordinates import RankGroup"),
        ("records.incident", "from .coordinates import RankGroup"),
        ("guard", "import torch\nfrom megatron_nanguard.postmortem import directory"),
        ("device.cuda", "import torch\ntorch.cuda.synchronize()"),
        ("cpurun.mapping.queries", "import torch.cuda\nimport megatron.core"),
        ("megatron_api.parallel", "from megatron.core import parallel_state"),
    ],
)
def test_a_source_that_keeps_the_rules_is_left_alone(module: str, source: str) -> None:
    assert violations(source, f"{PACKAGE}.{module}") == []


SIDES_OF_ONE_CONCEPT = {
    "causes.py": {"records", "report/sections"},
    "coordinates.py": {"records", "topology"},
    "doctor.py": {"records/machine", "cli"},
    "errors.py": {".", "cpurun"},
    "health.py": {"records/machine", "diagnosis", "report/sections"},
    "incident.py": {"records", "postmortem/merging"},
    "origins.py": {"diagnosis/joining", "report/sections"},
    "parameters.py": {"records/run", "report/sections"},
    "propagation.py": {"report/sections", "report/html/pictures"},
    "replay.py": {"records/step", "cli"},
    "suspect_call.py": {"records", "diagnosis"},
    "verdict.py": {"diagnosis", "report/sections"},
}
"""File names that stand in several rooms: a record and who makes, judges or shows it. cpurun imports no other room."""


def test_a_file_name_stands_in_one_room_or_for_one_concept() -> None:
    rooms_of: dict[str, set[str]] = {}
    for _, path in modules():
        rooms_of.setdefault(path.name, set()).add(path.parent.relative_to(ROOT).as_posix())
    del rooms_of["__init__.py"]
    assert {name: places for name, places in rooms_of.items() if len(places) > 1} == SIDES_OF_ONE_CONCEPT


def test_a_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = {}
    for module, path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize("entry", ["megatron_nanguard", "megatron_nanguard.cli", "megatron_nanguard.cli.report"])
def test_import_loads_neither_torch_nor_megatron(entry: str) -> None:
    code = f"import sys, {entry}; print([m for m in ('torch', 'megatron', 'numpy') if m in sys.modules])"
    assert run_fresh(code) == "[]"


def test_a_fresh_interpreter_would_tell_of_a_heavy_import() -> None:
    code = "import sys, json; print([m for m in ('json', 'torch') if m in sys.modules])"
    assert run_fresh(code) == "['json']"


def test_diagnosis_never_hears_of_the_drill() -> None:
    diagnosis = [path for module, path in modules() if room_of(module) == "diagnosis"]
    assert [path.name for path in diagnosis if "drill" in path.read_text(encoding="utf-8").lower()] == []
