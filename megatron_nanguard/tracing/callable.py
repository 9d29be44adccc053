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
    """What one traced call showed; `print` it.

    Attributes:
        record: origins with their paths, and the bad results and gradients that lead back to them.
        result: what the callable returned.
    """

    record: RankTrace
    result: Any

    @property
    def origins(self) -> tuple[TracedOrigin, ...]:
        """Where the bad values began, earliest first; empty when nothing bad came out."""
        return self.record.origins

    def __str__(self) -> str:
        return "\n".join(_lines(self.record))


def trace_nan(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> NanTrace:
    """Call `fn` once and follow what is bad in its result, or in the gradients it leaves, back to where it began.

    The backward is traced where `fn` runs it, as in `trace_nan(lambda: model(x).sum().backward())`; a bad loss is
    followed where `fn` returns it. Bits are those of an untraced call. An infinity that was meant, such as that of a
    mask, and what dies on the way are no origins.

    Args:
        fn: a module, a method of one, or anything else that can be called.
        args: for `fn`.
        kwargs: for `fn`.
    Raises:
        Exception: whatever `fn` raises.
    Sync: two host reads per operator; several more for the few tensors that turn bad.
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
    """A tracer that is not told what there is: modules are named when they run, leaves when they get a gradient."""

    def __init__(self, roots: list[Module]) -> None:
        """Nothing is traced before it is entered.

        Args:
            roots: modules that are known before the call, with names of their own.
        """
        self._roots: list[Module] = []
        self._module_names: dict[Module, str] = {}
        self._leaf_names: dict[Parameter, str] = {}
        self._num_leaves = 0
        for root in roots:
            self._name(root)
        # Without roots as yet: whose gradients are looked at is a matter of the leaves that are met.
        super().__init__(
            self._roots, self._module_names, self._leaf_names, rank=0, microbatch=0, look_when_newly_bad=True
        )
        self._roots += roots

    def module_entered(self, module: Module, args: Any) -> None:
        """A module that lies in none of those before it is a root."""
        if module not in self._module_names:
            self._name(module)
            self._roots.append(module)

    def add_result(self, result: Any) -> None:
        """What the callable returned must lead back to somewhere too."""
        for path, tensor in tensors_in(tuple(result.values()) if isinstance(result, dict) else result):
            name = f"result {path[0]}" if path else "result"
            self._quietly(self._sink, name, tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """A leaf shows when its gradient is accumulated."""
        node: Any = torch._C._current_autograd_node()
        if node is not None and is_accumulation(node):
            self._note_leaf(node.variable)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def finish(self) -> None:
        """Look at the gradients of every leaf that was met, then fetch the flags.

        Sync: one host read per dtype and device.
        """
        self._quietly(self._add_leaves)
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

    def _note_leaf(self, leaf: Any) -> None:
        if leaf not in self._leaf_names:
            self._num_leaves += 1
            self._leaf_names[leaf] = f"leaf {self._num_leaves} {list(leaf.shape)}"


def _lines(record: RankTrace) -> Iterator[str]:
    if record.broken:
        yield f"no verdict: {record.broken}"
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
    """An output that was looked at closely: how many bad elements, and where."""
    told = [f"{facts.nan_count} NaN, {facts.inf_count} Inf"]
    if facts.absmax is not None:
        told.append(f"largest finite {facts.absmax:.6g}")
    if facts.positions:
        told.append(f"first at {facts.positions[0]}")
    return f"output {facts.name}, {facts.shape} {facts.dtype}: {', '.join(filter(None, (*told, facts.layout)))}"


def _input(facts: TensorFacts) -> str:
    largest = "" if facts.absmax is None else f", largest {facts.absmax:.6g}"
    return f"{facts.name}: {facts.pattern}{largest}"
