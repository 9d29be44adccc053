"""Ascend cards through the command npu-smi, which comes with the driver."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from megatron_nanguard.health import npu_text
from megatron_nanguard.health.npu_text import State, read_states
from megatron_nanguard.health.polling import SourceAnswer
from megatron_nanguard.records.machine.health import HealthReading

TOOL: Final = "npu-smi"
SEARCH_PATH: Final = "/usr/local/bin:/usr/local/sbin"
"""Searched when the tool is not on PATH; the driver installs it there."""

TOOL_SECONDS: Final = 3.0
"""Timeout of one call, which takes some tenths of a second."""

QUESTIONS: Final[Mapping[str, npu_text.Reader]] = {
    "ecc": npu_text.read_ecc,
    "health": npu_text.read_health,
    "hccs": npu_text.read_hccs,
    "temp": read_states(State("temperature", ("NPU Temperature (C)", "Temperature (C)"), " C")),
    "memory": read_states(
        State("memory", ("HBM Capacity(MB)", "DDR Capacity(MB)"), " MB"),
        State("memory temperature", ("HBM Temperature(C)",), " C"),
    ),
    "board": read_states(
        State("driver", ("Software Version",)),
        State("firmware", ("Firmware Version",)),
        State("serial number", ("Serial Number",)),
        State("pci bus", ("PCIe Bus Info",)),
    ),
}
"""Arguments of `npu-smi info -t`, most useful first."""

WHOLE_CARD: Final = ("board",)
"""Asked for the card, not for a chip: for a chip the tool leaves out versions and serial number."""

CANNOT_ASK: Final = (OSError, subprocess.SubprocessError)
"""Raised when the tool is missing or hangs."""


class NpuSmi:
    """One Ascend card or chip.

    Args:
        logic_id: its number in the driver; torch may see fewer devices.
    """

    name = TOOL

    def __init__(self, logic_id: str) -> None:
        self._logic_id = logic_id

    def read(self) -> SourceAnswer:
        """Error counters and states of the card; after a call that hangs, no other is made."""
        try:
            chip = npu_text.parse_mapping(_ask("-m")).get(self._logic_id)
        except CANNOT_ASK as error:
            return SourceAnswer(problem=_problem(error))
        if chip is None:
            return SourceAnswer(problem=f"npu-smi info -m lists no device with logic id {self._logic_id}")
        return _answer_of(chip)


def count_chips() -> int | str:
    """Number of chips that npu-smi lists on this host, or why it lists none."""
    try:
        return len(npu_text.parse_mapping(_ask("-m")))
    except CANNOT_ASK as error:
        return _problem(error)


def _answer_of(chip: npu_text.Chip) -> SourceAnswer:
    counters: dict[str, int] = {}
    states: dict[str, str] = {}
    problem = ""
    for question, read in QUESTIONS.items():
        of_chip = ("-c", chip.chip) if chip.chip and question not in WHOLE_CARD else ()
        try:
            fields = npu_text.parse_fields(_ask("-t", question, "-i", chip.npu, *of_chip), chip.chip)
        except CANNOT_ASK as error:
            problem = _problem(error)
            break
        counted, found = read(fields)
        counters.update(counted)
        states.update(found)
    return SourceAnswer((HealthReading(TOOL, "device", counters, states),) if counters or states else (), problem)


def _ask(*arguments: str) -> str:
    """Output of ``npu-smi info``; for arguments that the driver does not know it has no fields."""
    found = shutil.which(TOOL) or shutil.which(TOOL, path=SEARCH_PATH)
    if found is None:
        raise FileNotFoundError(f"{TOOL} is neither on PATH nor in {SEARCH_PATH}")
    done = subprocess.run(
        [found, "info", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TOOL_SECONDS,
        check=False,
    )
    return done.stdout


def _problem(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{TOOL} {' '.join(error.cmd[1:])}: no answer within {TOOL_SECONDS:g} s"
    return str(error)
