"""The compiled index builder of Megatron's data sets, without a compiler.

The wheel ships the compiled `helpers_cpp` but no Makefile: `compile_helpers` would fail and end rank 0. A source tree
has the Makefile but needs pybind11; if a wheel of Megatron is installed beside it, the compiled module of the wheel is
used.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes

MODULE = "megatron.core.datasets.helpers_cpp"


def use_compiled_helpers(changes: ChangedAttributes, datasets_utils: ModuleType) -> None:
    """Skip `make` where a compiled module is found; elsewhere Megatron compiles as usual.

    Source: megatron/core/datasets/utils.py, compile_helpers
    """
    if hasattr(datasets_utils, "compile_helpers") and (_is_importable() or _loaded_from_wheel()):
        changes.wrap(datasets_utils, "compile_helpers", lambda original: lambda: None)


def _is_importable() -> bool:
    try:
        importlib.import_module(MODULE)
    except ImportError:
        return False
    return True


def _loaded_from_wheel() -> bool:
    compiled = _compiled_in_wheel()
    if compiled is None:
        return False
    spec = importlib.util.spec_from_file_location(MODULE, compiled)
    assert spec is not None and spec.loader is not None, "the suffix is that of a compiled module"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[MODULE] = module
    print(
        f"[cpu-run] the tree has no compiled helpers_cpp: taken from the installed wheel, {compiled}", file=sys.stderr
    )
    return True


def _compiled_in_wheel() -> Path | None:
    try:
        files = importlib.metadata.files("megatron-core") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    compiled = (file for file in files if file.name.startswith("helpers_cpp") and file.name.endswith(suffixes))
    return next((Path(str(file.locate())) for file in compiled), None)
