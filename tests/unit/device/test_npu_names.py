"""The names that `NpuDevice` reads are those of a real torch_npu: its wheel is downloaded, parsed, never imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from megatron_nanguard.device import npu, protocol

VERSION = "2.6.0"
WHEELS = Path(__file__).parents[3] / ".cache" / "wheels"
CALLED_BY_THE_ROOM = "torch_npu.npu.is_available"


def names_read() -> set[str]:
    """What the sources of the class and its base read from `self.torch_api`, modules aside."""
    trees = [ast.parse(Path(module.__file__).read_text(encoding="utf-8")) for module in (npu, protocol)]
    chains = {ast.unparse(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    mine = [chain for chain in chains if re.fullmatch(r"self\.torch_api[.\w]+", chain)]
    read = {chain.replace("self.torch_api", "torch_npu.npu") for chain in mine}
    return {name for name in read if not any(other.startswith(f"{name}.") for other in read)}


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    if not (found := sorted(WHEELS.glob(f"torch_npu-{VERSION}-*.whl"))):
        download = [
            sys.executable,
            "-m",
            "pip",
            "download",
            f"torch-npu=={VERSION}",
            "--no-deps",
            "--dest",
            str(WHEELS),
        ]
        target = ["--only-binary=:all:", "--python-version", "3.10", "--platform", "manylinux2014_x86_64"]
        done = subprocess.run([*download, *target], capture_output=True, text=True, check=False, timeout=50)
        if done.returncode:
            pytest.skip(f"torch-npu {VERSION} cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
        found = sorted(WHEELS.glob(f"torch_npu-{VERSION}-*.whl"))
    return zipfile.ZipFile(found[0])


def names_bound_in(wheel: zipfile.ZipFile, module: str) -> set[str]:
    """Every name that a module of the wheel defines, imports or assigns, or takes over whole from a neighbour."""
    path = module.replace(".", "/")
    files = set(wheel.namelist())
    source = wheel.read(f"{path}/__init__.py" if f"{path}/__init__.py" in files else f"{path}.py")
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.names[0].name == "*":
            names |= names_bound_in(wheel, f"{module}.{node.module}")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.mark.network
@pytest.mark.parametrize("name", sorted({*names_read(), CALLED_BY_THE_ROOM}))
def test_a_real_torch_npu_has_the_name(wheel: zipfile.ZipFile, name: str) -> None:
    module, _, leaf = name.rpartition(".")
    assert leaf in names_bound_in(wheel, module)


@pytest.mark.network
def test_the_look_up_would_notice_a_name_that_is_not_there(wheel: zipfile.ZipFile) -> None:
    assert "is_support_nan_inf" not in names_bound_in(wheel, "torch_npu.npu.utils")


def test_every_name_that_is_read_is_looked_up() -> None:
    found = names_read()
    assert found >= {"torch_npu.npu.set_device", "torch_npu.npu.utils.get_cann_version"}
    assert "torch_npu.npu.utils" not in found
    assert len(found) == 10
