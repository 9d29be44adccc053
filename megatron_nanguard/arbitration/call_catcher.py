"""Save the suspect call while a traced replay runs.

The tracer calls the catcher around every operator, with the number of the event, and knows nothing else of it:

    catcher.before(event, func, args, kwargs)    inputs are copied where the operator writes into them
    out = func(*args, **kwargs)
    catcher.after(out)

Where a chosen event is no operator, such as a bad weight at its first read, the next operator is saved: it read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor
from torch._ops import OpOverload

from megatron_nanguard.arbitration.packing import (
    CannotSave,
    Packer,
    check_size,
    describe_output,
    describe_tensors,
    host_copies,
    num_bytes,
)
from megatron_nanguard.arbitration.repro import Function, named
from megatron_nanguard.arbitration.rows import choose_rows, cut, row_arguments
from megatron_nanguard.device import device_of
from megatron_nanguard.records.suspect_call import SavedCall
from megatron_nanguard.records.trace import TracedOrigin

CAP_BYTES: Final = 256 << 20
"""Largest inputs that are saved whole: enough for the matrix product of a large layer, less than attention scores."""
RNG_NAME: Final = "rng"
COMMUNICATION: Final = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
COMMUNICATES: Final = "a communication needs its group"


@dataclass(frozen=True)
class CaughtCall:
    """A saved call with its tensors in host memory.

    Attributes:
        saved: the content of `call.json`.
        tensors: inputs by name; cut to the rows that matter where `saved.rows` is given.
        full: the whole inputs where `tensors` is cut; empty when they are too large.
        function: makes the call in this process; None for an operator, which is found by its name.
    """

    saved: SavedCall
    tensors: dict[str, Tensor] = field(default_factory=dict)
    full: dict[str, Tensor] = field(default_factory=dict)
    function: Function | None = None


@dataclass
class _Pending:
    func: OpOverload
    first: object
    saved: SavedCall
    live: dict[str, Tensor]
    copies: dict[str, Tensor] | None = None


class CallCatcher:
    """Saves the calls of chosen events. It runs inside the tracer's dispatch mode, so what it does is not traced."""

    def __init__(self, event_numbers: AbstractSet[int], cap_bytes: int = CAP_BYTES, *, rank: int = 0) -> None:
        """Choose the events.

        Args:
            event_numbers: from an earlier traced replay of the same step.
            cap_bytes: largest inputs that are saved whole.
            rank: this global rank.
        """
        self.calls: dict[int, CaughtCall] = {}
        self._to_come = sorted(event_numbers, reverse=True)
        self._due: list[int] = []
        self._cap_bytes = cap_bytes
        self._rank = rank
        self._pending: _Pending | None = None

    def before(self, event: int, func: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """See the inputs of one operator.

        Sync: waits for the device if it is a chosen one that writes into its inputs; else none.
        """
        while self._to_come and self._to_come[-1] <= event:
            self._due.append(self._to_come.pop())
        if not self._due:
            return
        saved = SavedCall(rank=self._rank, event=event, operator=str(func), versions={"torch": str(torch.__version__)})
        try:
            self._pending = self._prepare(func, args, kwargs, saved)
        except CannotSave as error:
            self._caught(CaughtCall(replace(saved, why_not=str(error))))

    def after(self, out: object) -> None:
        """See the result of the same operator.

        Sync: waits for the device if it is a chosen one; else none.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        outputs = dict(named(out, {"": pending.first}))
        try:
            self._caught(self._keep(pending, outputs))
        except CannotSave as error:
            described = tuple(describe_output(name, tensor) for name, tensor in outputs.items())
            self._caught(CaughtCall(replace(pending.saved, outputs=described, why_not=str(error))))

    def _caught(self, call: CaughtCall) -> None:
        for event in self._due:
            self.calls[event] = replace(call, saved=replace(call.saved, event=event))
        self._due.clear()

    def _prepare(
        self, func: object, args: Sequence[object], kwargs: Mapping[str, object], saved: SavedCall
    ) -> _Pending:
        if not isinstance(func, OpOverload):
            raise CannotSave("it has no schema")
        if func.namespace in COMMUNICATION:
            raise CannotSave(COMMUNICATES)
        packer = Packer()
        positional, by_name = packer.operator(func, args, kwargs)
        saved = replace(saved, args=positional, kwargs=by_name, device=device_name(packer.tensors))
        pending = _Pending(func, args[0] if args else None, saved, packer.tensors)
        if torch.Tag.nondeterministic_seeded in func.tags:
            kind = _device_type(packer.tensors)
            packer.tensors[RNG_NAME] = device_of(kind).rng_state()
            pending.saved = replace(saved, rng=RNG_NAME, rng_device=kind)
        if func._schema.is_mutable:
            check_size(packer.tensors, self._cap_bytes, "writes into its inputs, ")
            pending.copies = host_copies(packer.tensors)
        return pending

    def _keep(self, pending: _Pending, outputs: dict[str, Tensor]) -> CaughtCall:
        results, live = list(outputs.values()), pending.live
        names = row_arguments(pending.func, pending.saved.args, live, results)
        rows = choose_rows(results) if names else None
        saved = replace(pending.saved, outputs=tuple(describe_output(name, tensor) for name, tensor in outputs.items()))
        if rows is None:
            check_size(live, self._cap_bytes)
            whole = pending.copies or host_copies(live)
            return CaughtCall(replace(saved, tensors=describe_tensors(whole, live)), whole)
        full = pending.copies or (host_copies(live) if num_bytes(live) <= self._cap_bytes else {})
        chosen = {name: cut(tensor, rows) if name in names else tensor for name, tensor in (full or live).items()}
        check_size(chosen, self._cap_bytes, "cut to its rows ")
        tensors = host_copies(chosen)
        return CaughtCall(
            replace(
                saved,
                rows=rows,
                tensors=describe_tensors(tensors, live),
                outputs=tuple(describe_output(name, cut(tensor, rows)) for name, tensor in outputs.items()),
                full_tensors=describe_tensors(full, live),
                full_outputs=saved.outputs if full else (),
            ),
            tensors,
            full,
        )


def _device_type(tensors: Mapping[str, Tensor]) -> str:
    """Type of the accelerator among the devices of the inputs; cpu if there is none."""
    kinds = [tensor.device.type for tensor in tensors.values()]
    return next((kind for kind in kinds if kind != "cpu"), "cpu")


def device_name(tensors: Mapping[str, Tensor]) -> str:
    """Model name of the device that computes with these inputs."""
    return device_of(_device_type(tensors)).facts().name


def unsaved_call(rank: int, event: int | None, operator: str, why_not: str) -> CaughtCall:
    """Stand-in for a call that cannot be saved, such as a communication or a kernel that the tracer did not see."""
    return CaughtCall(SavedCall(rank=rank, event=event, operator=operator, why_not=why_not))


def with_place(call: CaughtCall, step: int, origin: TracedOrigin) -> CaughtCall:
    """Add step, module and phase of the origin to a call."""
    place = origin.place
    saved = replace(call.saved, step=step, event=origin.event, module=place.module, phase=place.phase)
    return replace(call, saved=saved)
