"""`nanguard doctor` where it has nothing to look at."""

from __future__ import annotations

import importlib.util

import pytest

from megatron_nanguard.cli import main


def test_without_torch_it_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(SystemExit) as caught:
        main(["doctor"])

    assert caught.value.code == 1
    assert capsys.readouterr().err == (
        "Error: patch points can only be resolved where torch is installed, beside Megatron\n"
    )
