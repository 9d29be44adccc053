"""NVIDIA GPUs through NVML; the only file that imports the package nvidia-ml-py.

ECC errors, uncorrected, volatile  2        row remap pending   yes
NVLink replay errors               0        clocks limited by   hardware thermal slowdown
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from megatron_nanguard.health.polling import SourceAnswer
from megatron_nanguard.health.severity import UNLIMITED
from megatron_nanguard.records.machine.health import HealthReading

NOT_INSTALLED: Final = "nvidia-ml-py is not installed: pip install 'megatron_nanguard[nvidia]'"

LIMITS: Final = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of the throttle reasons that indicate a problem; idling, clock settings and the power cap are normal."""

LINK_ERRORS: Final = {
    "NVLink replay errors": "NVML_NVLINK_ERROR_DL_REPLAY",
    "NVLink recovery errors": "NVML_NVLINK_ERROR_DL_RECOVERY",
    "NVLink CRC errors, flits": "NVML_NVLINK_ERROR_DL_CRC_FLIT",
    "NVLink CRC errors, data": "NVML_NVLINK_ERROR_DL_CRC_DATA",
}


class Nvml:
    """One GPU.

    Args:
        uuid: as NVML knows it; empty when torch does not know it.
    """

    name = "NVML"

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid

    def read(self) -> SourceAnswer:
        """Error counters and states of the GPU."""
        nvml = _nvml()
        if isinstance(nvml, str):
            return SourceAnswer(problem=nvml)
        try:
            if not self._uuid:
                return SourceAnswer(problem="this version of torch does not tell the UUID of its devices")
            return SourceAnswer((_Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(self._uuid)).reading(),))
        except nvml.NVMLError as error:
            return SourceAnswer(problem=f"NVML does not know device {self._uuid}: {error}")
        finally:
            nvml.nvmlShutdown()


def count_gpus() -> int | str:
    """Number of GPUs that NVML sees on this host, or why it sees none."""
    nvml = _nvml()
    if isinstance(nvml, str):
        return nvml
    try:
        count: int = nvml.nvmlDeviceGetCount()
    finally:
        nvml.nvmlShutdown()
    return count


def _nvml() -> Any:
    """The module of NVML, initialised; or a sentence why it cannot be."""
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return NOT_INSTALLED
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"NVML does not start: {error}"
    return nvml


class _Gpu:
    """Reads one property after the other; those that this GPU or driver does not support are left out."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._counters: dict[str, int] = {}
        self._states: dict[str, str] = {}

    def reading(self) -> HealthReading:
        for ask in (self._device, self._clocks, self._rows, self._pages):
            self._try(ask)
        for kind in ("corrected", "uncorrected"):
            for span in ("volatile", "aggregate"):
                self._try(partial(self._ecc, kind, span))
        for name, counter in LINK_ERRORS.items():
            self._links(name, getattr(self._nvml, counter))
        return HealthReading("nvml", "device", self._counters, self._states)

    def _try(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except self._nvml.NVMLError:
            return  # such as "Not Supported": every generation of GPUs lacks some property

    def _device(self) -> None:
        nvml, handle = self._nvml, self._handle
        self._states["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        self._states["pci address"] = pci_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        self._states["temperature"] = f"{nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)} C"

    def _clocks(self) -> None:
        reasons = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        limits = [words for bit, words in LIMITS.items() if reasons & bit]
        self._states["clocks limited by"] = ", ".join(limits) or UNLIMITED

    def _rows(self) -> None:
        corrected, uncorrected, pending, failure = self._nvml.nvmlDeviceGetRemappedRows(self._handle)
        self._counters["remapped rows, correctable"] = corrected
        self._counters["remapped rows, uncorrectable"] = uncorrected
        self._states["row remap pending"] = _yes(pending)
        self._states["row remap failure"] = _yes(failure)

    def _pages(self) -> None:
        nvml = self._nvml
        for words, cause in (("single", "MULTIPLE_SINGLE_BIT_ECC_ERRORS"), ("double", "DOUBLE_BIT_ECC_ERROR")):
            pages = nvml.nvmlDeviceGetRetiredPages(self._handle, getattr(nvml, f"NVML_PAGE_RETIREMENT_CAUSE_{cause}"))
            self._counters[f"retired pages, {words} bit"] = len(pages)
        self._states["pages to be retired"] = _yes(nvml.nvmlDeviceGetRetiredPagesPendingStatus(self._handle))

    def _ecc(self, kind: str, span: str) -> None:
        nvml = self._nvml
        error = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind.upper()}")
        counter = getattr(nvml, f"NVML_{span.upper()}_ECC")
        self._counters[f"ECC errors, {kind}, {span}"] = nvml.nvmlDeviceGetTotalEccErrors(self._handle, error, counter)

    def _links(self, name: str, counter: int) -> None:
        """Sum over the links that the GPU has and that are active."""
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            try:
                errors = self._nvml.nvmlDeviceGetNvLinkErrorCounter(self._handle, link, counter)
            except self._nvml.NVMLError:
                continue
            self._counters[name] = self._counters.get(name, 0) + errors


def pci_address(bus_id: str) -> str:
    """NVML's "00000000:3B:00.0" as the kernel writes it: "0000:3b:00"."""
    numbers = re.match(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)", bus_id)
    if numbers is None:
        return ""
    domain, bus, device = (int(number, 16) for number in numbers.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def _yes(flag: int) -> str:
    return "yes" if flag else "no"


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
