"""Run the suspect call again: several times on its own device, and in higher precision on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_nanguard.arbitration import repro
from megatron_nanguard.arbitration.call_catcher import COMMUNICATES, COMMUNICATION, CaughtCall
from megatron_nanguard.arbitration.references import reference_for
from megatron_nanguard.arbitration.repro import CannotRun
from megatron_nanguard.device import device_of
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.suspect_call import BAD, FINITE, NOT_TRIED, Arbitration, PeerAnswer, SavedCall
from megatron_nanguard.tensor_names import dtype_name

CPU: Final = torch.device("cpu")
Json = dict[str, Any]
Outputs = Sequence[tuple[str, Tensor]]
CANNOT_RUN: Final = (
    *(repro.CannotRun, RuntimeError, TypeError, ValueError),
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
)
"""What a call may raise. First line: the device or a dtype is not supported, which is a RuntimeError; or a part is
missing. Second line: a reference got arguments that it does not expect."""


def arbitrate(call: CaughtCall, repeats: int = 8, peer: PeerAnswer | str = NOT_TRIED) -> Arbitration:
    """Run the call again here and in higher precision, and add the answer of a peer.

    Args:
        call: as it was saved on this rank.
        repeats: how often to run it on its own device.
        peer: the answer of another rank, or why there is none.
    Sync: waits for the device; the state of its random generator is restored.
    """
    saved = call.saved
    bad, done, why_not = 0, 0, saved.why_not
    fp64 = fp32 = NOT_TRIED
    out_of_range = False
    if not saved.why_not:
        bad, done, why_not = repeat(call, repeats)
        fp64, out_of_range = refer(call, torch.float64)
        is_single = all(tensor.dtype != torch.float64 for tensor in call.tensors.values())
        fp32 = refer(call, torch.float32)[0] if is_single else NOT_TRIED
    return Arbitration(
        rank=saved.rank,
        operator=_region_name(saved),
        event=saved.event,
        module=saved.module,
        inputs_bad=not all(meta.is_finite for meta in (saved.full_tensors or saved.tensors).values()),
        repeats=done,
        repeats_bad=bad,
        peer=peer if isinstance(peer, str) else peer.outcome,
        peer_rank=None if isinstance(peer, str) else peer.rank,
        peer_device="" if isinstance(peer, str) else peer.device,
        reference_fp32=fp32,
        reference_fp64=fp64,
        out_of_range=out_of_range,
        reference=_reference_name(saved),
        captured=not saved.why_not,
        note="; ".join(filter(None, (*saved.notes, why_not))),
    )


def repeat(call: CaughtCall, repeats: int) -> tuple[int, int, str]:
    """Run the call on the kind of device it ran on.

    Returns:
        How often the result was bad, how often the call ran, and why it did not run.
    Sync: waits for the device.
    """
    plain, tensors = whole(call)
    device = torch.device(_device_type(plain))
    num_bad = 0
    try:
        for _ in range(repeats):
            num_bad += repro.is_bad(plain, run_once(call, plain, tensors, device))
    except CANNOT_RUN as error:
        return 0, 0, repro.first_line(error)
    return num_bad, repeats, ""


def run_once(call: CaughtCall, plain: Json, tensors: Mapping[str, Tensor], device: torch.device) -> Outputs:
    """Make the call once; the state of the random generator is restored."""
    function = call.function or _function(call.saved)
    with _same_generator(plain, device), Alone():  # type: ignore[no-untyped-call]
        return repro.run(plain, tensors, device, function)


def _function(saved: SavedCall) -> repro.Function:
    if saved.kind == "operator":
        operator = repro.find_operator(saved.operator)
        if operator is None:
            raise repro.CannotRun(f"{saved.operator} is not registered in this process")
        return repro.function_of(operator)
    cls = repro.find_class(saved.operator)
    if cls is None:
        raise repro.CannotRun(f"no autograd Function {saved.operator} is loaded")
    return repro.function_of(cls)


def refer(call: CaughtCall, dtype: torch.dtype) -> tuple[str, bool]:
    """Run the call in higher precision on the CPU and round the result to the type of the outputs.

    Returns:
        The outcome, and whether the result only became bad by rounding.
    """
    function = reference_for(call.saved.operator)
    if function is None and _reference_name(call.saved) != "aten":
        return f"no reference for {call.saved.operator}", False
    try:
        function = repro.of_reference(function) if function else _function(call.saved)
        plain, tensors = in_precision(*whole(call), dtype)
        types = {output["name"]: repro.type_of(output["dtype"]) for output in plain["outputs"]}
        with _same_generator(plain, CPU):
            outputs = repro.run(plain, tensors, CPU, function)
    except CANNOT_RUN as error:
        return repro.first_line(error), False
    rounded = [(name, tensor.to(types.get(name, tensor.dtype))) for name, tensor in outputs]
    is_bad = repro.is_bad(plain, rounded)
    return (BAD if is_bad else FINITE), is_bad and not repro.is_bad(plain, outputs)


def whole(call: CaughtCall) -> tuple[Json, Mapping[str, Tensor]]:
    """The call as plain JSON with its tensors: the whole inputs where they were saved."""
    plain = orjson.loads(to_json(call.saved))
    return (repro.whole(plain), call.full) if call.full else (plain, call.tensors)


def in_precision(plain: Json, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[Json, dict[str, Tensor]]:
    """The same call on the CPU with all floating-point tensors and dtype arguments in another dtype."""
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    text = dtype_name(dtype)
    described = {name: {**meta, "device": "cpu"} for name, meta in plain["tensors"].items()}
    arguments = {
        side: [
            {**argument, "values": [_value_in(value, argument["name"], text) for value in argument["values"]]}
            for argument in plain[side]
        ]
        for side in ("args", "kwargs", "grad_outputs")
    }
    return {**plain, **arguments, "tensors": described}, cast


def _value_in(value: Json, name: str, dtype: str) -> Json:
    if value["kind"] == "dtype" and repro.type_of(value["text"]).is_floating_point:
        return {**value, "text": dtype}
    if name == "half_to_float":  # softmax of half precision with a single-precision result: here both have one dtype
        return {**value, "text": "false"}
    return value


def outcome(call: SavedCall, outputs: Outputs) -> str:
    """Whether a result is as bad as in the run, in the word of the records."""
    return BAD if repro.is_bad(orjson.loads(to_json(call)), outputs) else FINITE


def _region_name(saved: SavedCall) -> str:
    """The call as the trace names it: "_Linear.forward" or "_LinearBackward" of a Function."""
    return saved.operator + {"operator": "", "forward": ".forward", "backward": "Backward"}[saved.kind]


def _reference_name(saved: SavedCall) -> str:
    if reference_for(saved.operator) is not None:
        return saved.operator
    return "aten" if saved.kind == "operator" and saved.operator.startswith("aten.") else ""


def _device_type(plain: Json) -> str:
    kinds = [meta["device"] for meta in plain["tensors"].values()]
    return next((kind for kind in kinds if kind != "cpu"), "cpu")


@contextmanager
def _same_generator(plain: Json, device: torch.device) -> Iterator[None]:
    """Restore the state of the random generator after a call that draws from it: the training run needs it."""
    if plain["rng"] is None or plain["rng_device"] != device.type:
        yield
        return
    state = device_of(device.type).rng_state()
    try:
        yield
    finally:
        device_of(device.type).set_rng_state(state)


class Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises CannotRun for every communication: one rank alone would wait for the others for ever."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled helpers compiled: their kernels are to be run again."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run every other operator."""
        if getattr(func, "namespace", "") in COMMUNICATION:
            raise CannotRun(COMMUNICATES)
        return func(*args, **(kwargs or {}))
