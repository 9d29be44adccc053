"""Run a saved call on several devices, for `nanguard replay`; only operators on the list and references are run."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import torch

from megatron_nanguard.arbitration import repro
from megatron_nanguard.arbitration.bundle import allowed_operator
from megatron_nanguard.arbitration.call_catcher import CaughtCall
from megatron_nanguard.arbitration.packing import describe_output
from megatron_nanguard.arbitration.references import reference_for
from megatron_nanguard.arbitration.repetition import CANNOT_RUN, outcome, refer
from megatron_nanguard.device import training_device
from megatron_nanguard.errors import PostmortemError, ReplayError
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.suspect_call import DeviceOutcome


def default_devices() -> tuple[str, ...]:
    """The CPU, and the accelerator of this machine if there is one."""
    return tuple(dict.fromkeys(("cpu", training_device().backend)))


def compare_devices(call: CaughtCall, devices: Sequence[str]) -> tuple[DeviceOutcome, ...]:
    """Run a call that was read from a bundle on each device, then in float64 on the CPU.

    Raises:
        PostmortemError: the bundle names an operator that is not on the list; nothing was run.
        ReplayError: it holds no call that one process can make.
    Sync: waits for each device.
    """
    if call.saved.why_not:
        suspect = call.saved.operator or "this bundle"
        raise ReplayError(f"{suspect} cannot be run alone: {call.saved.why_not}")
    function = _function(call)
    found = [_on(call, device, function) for device in devices]
    word, out_of_range = refer(call, torch.float64)
    beyond = "; finite in float64, but not in the type of the output" if out_of_range else ""
    return (*found, DeviceOutcome("cpu, float64", word + beyond, ()))


def _function(call: CaughtCall) -> repro.Function:
    if call.saved.kind == "operator":
        return repro.function_of(allowed_operator(call.saved.operator))
    function = reference_for(call.saved.operator)
    if function is None:
        raise PostmortemError(
            f"{call.saved.operator[:80]!r} has no reference here; its bundle's repro.py runs it with --preload FILE"
        )
    return repro.of_reference(function)


def _on(call: CaughtCall, device: str, function: repro.Function) -> DeviceOutcome:
    try:
        outputs = repro.run(orjson.loads(to_json(call.saved)), call.tensors, repro.open_device(device), function)
    except CANNOT_RUN as error:
        return DeviceOutcome(device, repro.first_line(error), ())
    described = tuple(describe_output(name, tensor) for name, tensor in outputs)
    return DeviceOutcome(device, outcome(call.saved, outputs), described)
