from __future__ import annotations

import sys
from pathlib import Path

import pytest

from megatron_nanguard.cpurun.preload import preload


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package `hostlike` with a part that needs something absent."""
    folder = tmp_path / "hostlike"
    folder.mkdir()
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "part.py").write_text("import warnings\nwarnings.warn('the host talks')", encoding="utf-8")
    (folder / "needy.py").write_text("import absent_dependency", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_a_module_that_the_release_lacks_is_skipped(package: Path) -> None:
    preload(["hostlike.no_such_part", "hostlike.no_such_folder.part", "no_such_host.part", "hostlike.part"])

    assert "hostlike.part" in sys.modules


def test_a_missing_dependency_of_the_host_is_raised(package: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="absent_dependency"):
        preload(["hostlike.needy"])
