"""One rank of real Megatron in this process, as the unit tests of an incident have it; and the table of all cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.conftest import install, log, megatron, world_of_one

__all__ = ["install", "log", "megatron", "world_of_one"]

TABLE = Path(__file__).parents[2] / ".cache" / "chaos.txt"
"""Seconds, outcome and name of every case of the last run."""

_cases: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what became of a case. A hang is a failure by the limit of its test."""
    _, is_ours, name = report.nodeid.partition("tests/chaos/")
    if is_ours and (report.when == "call" or not report.passed):
        _cases.append(f"{report.duration:7.1f} s  {report.outcome:7}  {name}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table, in the process that collects the reports."""
    if _cases and not hasattr(session.config, "workerinput"):
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text("\n".join([*_cases, f"{len(_cases)} cases", ""]))
