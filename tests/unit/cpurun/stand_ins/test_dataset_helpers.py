from __future__ import annotations

import importlib.metadata

import pytest

from megatron_nanguard.cpurun.stand_ins import dataset_helpers


def test_the_compiled_module_of_the_installed_wheel_is_found() -> None:
    compiled = dataset_helpers._compiled_in_wheel()

    assert compiled is not None
    assert compiled.is_file()
    assert compiled.parts[-4:-1] == ("megatron", "core", "datasets")


def test_without_a_wheel_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)

    assert dataset_helpers._compiled_in_wheel() is None
