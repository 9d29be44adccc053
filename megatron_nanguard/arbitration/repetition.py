"""Run the suspect call again: several times on its own device, and in higher precision on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import orjson
import torch
from torch import Tensor
from torch._ops import OpOverload
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


class Repeats(NamedTuple):
    """What came of running a call again.

    Attributes:
        repeats: how often it ran.
        bad: how often the result was bad.
        zero_filled: how many of the runs found zeros in fresh memory.
        zero_filled_bad: how many of these were bad.
        why_not: why it did not run.
    """

    repeats: int = 0
    bad: int = 0
    zero_filled: int = 0
    zero_filled_bad: int = 0
    why_not: str = ""


def arbitrate(call: CaughtCall, repeats: int = 8, peer: PeerAnswer | str = NOT_TRIED) -> Arbitration:
    """Run the call again here and in higher precision, and add the answer of a peer.

    Args:
        call: as it was saved on this rank.
        repeats: how often to run it on its own device.
        peer: the answer of another rank, or why there is none.
    Sync: waits for the device; the state of its random generator is restored.
    """
    saved = call.saved
    done = Repeats(why_not=saved.why_not)
    fp64 = fp32 = NOT_TRIED
    out_of_range = False
    if not saved.why_not:
        done = repeat(call, repeats)
        fp64, out_of_range = refer(call, torch.float64)
        is_single = all(tensor.dtype != torch.float64 for tensor in call.tensors.values())
        fp32 = refer(call, torch.float32)[0] if is_single else NOT_TRIED
    return Arbitration(
        rank=saved.rank,
        operator=_region_name(saved),
        event=saved.event,
        module=saved.module,
        inputs_bad=not all(meta.is_finite for meta in (saved.full_tensors or saved.tensors).values()),
        repeats=done.repeats,
        repeats_bad=done.bad,
        zero_filled=done.zero_filled,
        zero_filled_bad=done.zero_filled_bad,
        peer=peer if isinstance(peer, str) else peer.outcome,
        peer_rank=None if isinstance(peer, str) else peer.rank,
        peer_device="" if isinstance(peer, str) else peer.device,
        reference_fp32=fp32,
        reference_fp64=fp64,
        out_of_range=out_of_range,
        reference=_reference_name(saved),
        captured=not saved.why_not,
        note="; ".join(filter(None, (*saved.notes, done.why_not))),
    )


def repeat(call: CaughtCall, repeats: int) -> Repeats:
    """Run the call on the kind of device it ran on.

    Memory that a Function reads before it writes it may hold NaN each time: the allocator hands out what a run before
    has left. So every second run of a Function finds zeros there.

    Sync: waits for the device.
    """
    plain, tensors = whole(call)
    device = torch.device(_device_type(plain))
    bad: list[bool] = []
    filled: list[bool] = []
    try:
        for number in range(repeats):
            fills = call.saved.kind != "operator" and number % 2 == 1
            found = filled if fills else bad
            fill = 0.0 if fills else math.nan if call.saved.in_marked_memory else None
            found.append(repro.is_bad(plain, run_once(call, plain, tensors, device, fill)))
    except CANNOT_RUN as error:
        return Repeats(why_not=repro.first_line(error))
    return Repeats(repeats, sum(bad) + sum(filled), len(filled), sum(filled))


def run_once(
    call: CaughtCall,
    plain: Json,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    fill: float | None = None,
) -> Outputs:
    """Make the call once; the state of the random generator is restored.

    Args:
        call: with the function that makes it, where this process has one.
        plain: the call as JSON.
        tensors: its inputs.
        device: to run on.
        fill: what all fresh memory is filled with; None leaves it as it is.
    """
    function = call.function or _function(call.saved)
    with _same_generator(plain, device), Alone(fill):
        return repro.run(plain, tensors, device, function)


def _function(saved: SavedCall) -> repro.Function:
    if saved.kind == "operator":
        operator = repro.find_operator(saved.operator)
        if operator is None:
            raise repro.CannotRun(f"{saved.operator} is not registered in this process")
        return repro.function_of(operator)
    cls = repro.find_class(saved.operator, saved.source)
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


class Alone(TorchDispatchMode):
    """Raises CannotRun for every communication: one rank alone would wait for the others for ever.

    Args:
        fill: is written into the memory that every ``empty`` returns; None leaves that as it is.
    """

    def __init__(self, fill: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fill = fill

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
        result = func(*args, **(kwargs or {}))
        is_empty = isinstance(func, OpOverload) and func._schema.name.startswith(("aten::empty", "aten::new_empty"))
        if self._fill is not None and is_empty and isinstance(result, Tensor):
            result.detach().fill_(self._fill if result.is_floating_point() else 0)
        return result
