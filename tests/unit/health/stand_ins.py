"""Stand-ins for tools: a command npu-smi on the path, and a module pynvml."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

HANGS = "hangs"
"""Makes the tool sleep instead of printing."""
UUID = "GPU-5d1f0c3e-0000-0000-0000-00000000000a"


def put_npu_smi(monkeypatch: pytest.MonkeyPatch, folder: Path, answers: Mapping[str, str]) -> None:
    """A shell script that prints what a test wants for each question, and fails on any other."""
    folder.mkdir(exist_ok=True)
    cases = []
    for number, (question, text) in enumerate(answers.items()):
        answer = folder / f"answer{number}.txt"
        answer.write_text(text)
        action = "sleep 60" if text == HANGS else f"cat {shlex.quote(str(answer))}"
        cases.append(f'"info {question}") {action} ;;')
    script = folder / "npu-smi"
    script.write_text("\n".join(["#!/bin/sh", 'case "$*" in', *cases, '*) echo "Error parameter"; exit 1 ;;', "esac"]))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


class NVMLError(Exception):
    """The one class of errors of NVML."""


class StandInNvml(ModuleType):
    """`pynvml` of a host with one GPU that has ECC, row remapping and two links; without page retirement.

    The names are those of the real module, as `test_nvidia.py` checks.
    """

    NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_NVLINK_MAX_LINKS = 4
    NVML_NVLINK_ERROR_DL_REPLAY, NVML_NVLINK_ERROR_DL_RECOVERY = 0, 1
    NVML_NVLINK_ERROR_DL_CRC_FLIT, NVML_NVLINK_ERROR_DL_CRC_DATA = 2, 3
    NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS = 0
    NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR = 1
    NVML_TEMPERATURE_GPU = 0
    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.uncorrected = 0
        self.reasons = 0x4  # the power cap
        self.is_started = 0
        self.why_no_driver = ""
        self.released = threading.Event()
        self.blocks = False

    def nvmlInit(self) -> None:
        if self.blocks:
            self.released.wait()
        if self.why_no_driver:
            raise NVMLError(self.why_no_driver)
        self.is_started += 1

    def nvmlShutdown(self) -> None:
        self.is_started -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != UUID:
            raise NVMLError("Not Found")
        return "handle"

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.54.15"

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        return SimpleNamespace(busId=b"00000000:3B:00.0")

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, int, int, int]:
        return 1, self.uncorrected, int(self.uncorrected > 0), 0

    def nvmlDeviceGetRetiredPages(self, handle: str, cause: int) -> list[int]:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: str) -> int:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetTotalEccErrors(self, handle: str, error: int, counter: int) -> int:
        return self.uncorrected if error == self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED else 4 + counter

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: str, link: int, counter: int) -> int:
        if link in (0, 3):
            raise NVMLError("Not Supported")
        if counter == self.NVML_NVLINK_ERROR_DL_CRC_DATA:
            raise NVMLError("Invalid Argument")
        return 10 * counter + link


def put_nvml(monkeypatch: pytest.MonkeyPatch) -> StandInNvml:
    """Make `import pynvml` find the stand-in for the length of a test."""
    module = StandInNvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module
