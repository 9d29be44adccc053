"""Where the evidence is."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections import files
from tests.unit.factories import incident
from tests.unit.report.factories import opened_incident


def test_files_are_named_below_their_directory() -> None:
    assert files.describe(opened_incident()).rows == (("directory", "/data/DIR"), ("all ranks", "incident.json"))
    assert files.describe(opened_incident(files=("a", "b", "c"))).rows[2] == ("each rank", "a and 2 more")
    assert files.describe(opened_incident(files=("a",))).rows[2] == ("each rank", "a")


def test_a_merged_file_that_nobody_wrote_is_not_named() -> None:
    nobody = PolicyOutcome("abort", "unknown", None, "not known")

    assert files.describe(opened_incident(files=("a",), policy=nobody)).rows == (
        ("directory", "/data/DIR"),
        ("each rank", "a"),
    )


def test_the_directory_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert files.describe(OpenedIncident(incident(), Path("DIR"))).rows[0] == ("directory", str(tmp_path / "DIR"))
