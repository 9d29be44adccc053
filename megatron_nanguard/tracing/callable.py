"""`megatron_nanguard.trace_nan(fn)`: the origin of a bad gradient or result of any PyTorch callable, in one process.

origin  log in mlp.activation, forward, output 0: nan, at model.py:41 in Gelu.forward
        output 0, (4, 8) float32: 3 NaN, 0 Inf, largest finite 1.5, first at (0, 1), rows 0 to 2
        read self: finite, largest 2.25
path    log in mlp.activation > mul.Tensor in mlp > sum in Block
bad     result: nan; mlp.up.weight: nan
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module, Parameter
from torch.nn.modules.module import register_module_forward_pre_hook

from megatron_nanguard.megatron_api.buffers import local_gradient
from megatron_nanguard.records.trace import OriginKind, RankTrace, TensorFacts, TracedOrigin
from megatron_nanguard.tensor_names import tensors_in
from megatron_nanguard.tracing.places.nodes import is_accumulation
from megatron_nanguard.tracing.tracer import Tracer

MAX_STEPS = 12
"""Steps of a path that are printed; the record has all."""


@dataclass(frozen=True)
class NanTrace:
    """What one traced call showed. Print it to get the text above.

    Attributes:
        record: origins with their paths, and the bad results and gradients that lead back to them.
        result: what the callable returned.
    """

    record: RankTrace
    result: Any

    @property
    def origins(self) -> tuple[TracedOrigin, ...]:
        """Where the bad values began, earliest first; empty if neither the result nor a gradient is bad."""
        return self.record.origins

    def __str__(self) -> str:
        return "\n".join(_lines(self.record))


def trace_nan(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> NanTrace:
    """Call `fn` once, and follow bad values in its result and in the gradients it leaves back to where they began.

    To trace the backward, let `fn` run it, as in `trace_nan(lambda: model(x).sum().backward())`. To follow a bad loss,
    let `fn` return it. The results have the same bits as those of an untraced call. Two things are no origins: an
    infinity that is meant, such as the -inf of a mask, and a bad value without effect on the result or on a gradient.

    Args:
        fn: a module, a method of one, or anything else that can be called.
        args: positional arguments for `fn`.
        kwargs: keyword arguments for `fn`.
    Raises:
        Exception: whatever `fn` raises.
    Sync: two host reads per tensor written; several more for the few tensors that turn bad.
    """
    owner = getattr(fn, "__self__", fn)
    tracer = CallableTracer([owner] if isinstance(owner, Module) else [])
    handle = register_module_forward_pre_hook(tracer.module_entered)
    try:
        with tracer, tracer.at(0, 0, False):
            result = fn(*args, **kwargs)
    finally:
        handle.remove()
    tracer.add_result(result)
    tracer.finish()
    return NanTrace(tracer.summarize(""), result)


class CallableTracer(Tracer):  # type: ignore[no-untyped-call]
    """A tracer that knows no model: it names modules when they run, and leaves when they get a gradient."""

    def __init__(self, roots: list[Module]) -> None:
        """Nothing is traced before it is entered.

        Args:
            roots: modules whose names are known before the call.
        """
        self._roots: list[Module] = []
        self._module_names: dict[Module, str] = {}
        self._leaf_names: dict[Parameter, str] = {}
        self._num_leaves = 0
        for root in roots:
            self._name(root)
        # The list of chunks is still empty here: leaves, not chunks, say whose gradients to look at.
        super().__init__(
            self._roots, self._module_names, self._leaf_names, rank=0, microbatch=0, look_when_newly_bad=True
        )
        self._roots += roots

    def module_entered(self, module: Module, args: object) -> None:
        """Before a forward: name the module and those inside, unless a module entered before has named it."""
        if module not in self._module_names:
            self._name(module)
            self._roots.append(module)

    def add_result(self, result: Any) -> None:
        """Add what the callable returned to what the walk back starts from."""
        for path, tensor in tensors_in(tuple(result.values()) if isinstance(result, dict) else result):
            name = f"result {path[0]}" if path else "result"
            self._with_modes_off(self._sink, name, tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Trace an operator, and name the leaf whose gradient it accumulates."""
        node: Any = torch._C._current_autograd_node()
        if node is not None and is_accumulation(node):
            self._note_leaf(node.variable)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def finish(self) -> None:
        """Look at the gradients of all named leaves, then fetch all flags to the host.

        Sync: one host read per dtype and device.
        """
        self._with_modes_off(self._add_leaves)
        super().finish()

    def _add_leaves(self) -> None:
        for leaf, name in self._leaf_names.items():
            gradient = local_gradient(leaf)
            if gradient is not None:
                self._sink(name, gradient.data)

    def _name(self, root: Module) -> None:
        prefix = f"{type(root).__name__}." if self._module_names else ""
        for path, module in root.named_modules():
            self._module_names.setdefault(module, f"{prefix}{path}".rstrip("."))
        for path, parameter in root.named_parameters():
            self._leaf_names.setdefault(parameter, f"{prefix}{path}")

    def _note_leaf(self, leaf: Parameter) -> None:
        if leaf not in self._leaf_names:
            self._num_leaves += 1
            self._leaf_names[leaf] = f"leaf {self._num_leaves} {list(leaf.shape)}"


def _lines(record: RankTrace) -> Iterator[str]:
    if record.broken:
        yield f"no result: {record.broken}"
        return
    if not record.sinks:
        yield "nothing bad in the result or in a gradient"
        if record.num_contained:
            yield f"bad on the way, without effect on either: {record.num_contained}; return the loss to follow it too"
        return
    for origin in record.origins:
        yield from _origin(origin)
    yield "bad     " + "; ".join(f"{name}: {sink.pattern}" for sink in record.sinks for name in sink.names)


def _origin(origin: TracedOrigin) -> Iterator[str]:
    place = origin.place
    where = f"{origin.operator} in {place.module}" if place.module else origin.operator
    made = f" ({origin.kind.value})" if origin.kind is not OriginKind.OPERATOR else ""
    outputs = ", ".join(f"output {facts.name}: {facts.pattern}" for facts in origin.outputs)
    line = f", at {place.source_line}" if place.source_line else ""
    times = f", {origin.times} times" if origin.times > 1 else ""
    yield f"origin  {where}{made}, {place.phase}, {outputs}{line}{times}"
    if place.forward_line and place.forward_line != place.source_line:
        yield f"        backward of {place.forward_operator} at {place.forward_line}"
    for facts in origin.outputs:
        if facts.nan_count is not None:
            yield f"        {_counted(facts)}"
    if origin.inputs:
        yield "        read " + ", ".join(map(_input, origin.inputs))
    more = len(origin.path) - MAX_STEPS
    yield "path    " + " > ".join([*origin.path[:MAX_STEPS], *([f"... {more} more"] if more > 0 else [])])


def _counted(facts: TensorFacts) -> str:
    """How many bad elements an output has, and where."""
    words = [f"{facts.nan_count} NaN, {facts.inf_count} Inf"]
    if facts.absmax is not None:
        words.append(f"largest finite {facts.absmax:.6g}")
    if facts.positions:
        words.append(f"first at {facts.positions[0]}")
    return f"output {facts.name}, {facts.shape} {facts.dtype}: {', '.join(filter(None, (*words, facts.layout)))}"


def _input(facts: TensorFacts) -> str:
    largest = "" if facts.absmax is None else f", largest {facts.absmax:.6g}"
    return f"{facts.name}: {facts.pattern}{largest}"
