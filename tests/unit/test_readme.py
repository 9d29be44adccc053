"""The README says what the code says."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.cli import COMMANDS
from scripts.write_docs import options_table

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_options_are_those_of_the_settings() -> None:
    assert options_table() in README


def test_it_can_be_read_in_one_sitting() -> None:
    assert len(README.splitlines()) <= 150


def test_every_command_is_mentioned() -> None:
    assert [name for name in COMMANDS if f"nanguard {name}" not in README and name != "demo"] == []
