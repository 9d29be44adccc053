"""Run and step, files, and notes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.incident import DeviceCount, PolicyOutcome
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections import run_facts
from tests.unit.factories import incident
from tests.unit.report.factories import described, opened_incident


def test_numbers_that_are_not_known_are_left_out() -> None:
    assert run_facts.describe(opened_incident()) == Block(
        "Run and step",
        rows=(
            ("run", "20260101-120000-ab12"),
            ("step", "3"),
            ("first seen", "in the gradients of a rank, before the data-parallel reduction"),
            ("layout", "8 ranks: TP2 PP2 DP2"),
            ("policy", "all ranks left with exit code 65 before any weight changed"),
        ),
    )


def test_virtual_pipelining_is_part_of_the_layout() -> None:
    chunks = ParallelSizes(8, 1, 1, 1, 2, 4, 1, 2, vpp=2)
    assert ("layout", "8 ranks: PP4 VPP2 DP2") in run_facts.describe(opened_incident(sizes=chunks)).rows


def test_numbers_that_are_known_are_given() -> None:
    one = ParallelSizes(1, 1, 1, 1, 1, 1, 1, 1)
    known = opened_incident(
        sizes=one,
        grad_norm=math.inf,
        clip_coefficient=0.0,
        loss_scale=65536.0,
        devices=(DeviceCount("npu", "Test NPU", "saturation", 1),),
        versions={"torch": "2.14.1", "python": "3.12.1"},
    )

    assert run_facts.describe(known).rows[3:-1] == (
        ("layout", "1 rank"),
        ("gradient norm", "Inf"),
        ("clip coefficient", "0"),
        ("loss scale", "65536"),
        ("device", "1 x Test NPU, overflow mode saturation"),
        ("versions", "torch 2.14.1, python 3.12.1"),
    )


def test_files_are_named_below_their_directory() -> None:
    assert run_facts.describe_files(opened_incident()).rows == (
        ("directory", "/data/DIR"),
        ("all ranks", "incident.json"),
    )
    assert run_facts.describe_files(opened_incident(files=("a", "b", "c"))).rows[2] == ("each rank", "a and 2 more")
    assert run_facts.describe_files(opened_incident(files=("a",))).rows[2] == ("each rank", "a")


def test_a_merged_file_that_does_not_exist_is_not_listed() -> None:
    nobody = PolicyOutcome("abort", "unknown", None, "not known")

    assert run_facts.describe_files(opened_incident(files=("a",), policy=nobody)).rows == (
        ("directory", "/data/DIR"),
        ("each rank", "a"),
    )


def test_the_directory_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_facts.describe_files(OpenedIncident(incident(), Path("DIR"))).rows[0] == (
        "directory",
        str(tmp_path / "DIR"),
    )


def test_without_notes_there_is_no_section() -> None:
    assert run_facts.describe_notes(opened_incident(devices=(DeviceCount("npu", "Test NPU", "inf_nan", 8),))) is None


def test_a_device_that_hides_overflow_gets_a_warning() -> None:
    blind = opened_incident(devices=(DeviceCount("npu", "Test NPU", "saturation", 8),), notes=("rank 3: a note",))

    assert described(run_facts.describe_notes, blind).notes == ("rank 3: a note", run_facts.SATURATION)
