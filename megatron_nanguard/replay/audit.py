"""Find what was bad before the step began: weights, main parameters, moments, buffers and data, before any replay.

This cannot be done when the schedule is called: with overlapping parameter gathers the weights are still those of the
step before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from megatron_nanguard.megatron_api.optimizer_state import OptimizerParameter, optimizer_parameters
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer, ModelChunk
from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.records.step.replay import AuditFinding, AuditKind
from megatron_nanguard.replay.data_iterators import Batch, vars_of
from megatron_nanguard.tensor_names import named_tensors

OWNED_ELSEWHERE = "where it is bad, other ranks own it"
"""Note on a model weight whose main parameter is on other ranks of the distributed optimizer."""

Pattern = Literal["nan", "inf", "nan+inf", "negative"]


@dataclass(frozen=True, eq=False)
class _AuditedTensor:
    """One tensor to check.

    Attributes:
        kept: main parameter and moments of a weight, where the main parameter is a copy of the weight.
        is_elsewhere: the optimizer of this rank has no part of this weight.
    """

    kind: AuditKind
    name: str
    tensor: Tensor
    kept: OptimizerParameter | None = None
    is_elsewhere: bool = False


def audit(
    chunks: Sequence[ModelChunk], names: ParameterMap, optimizer: MegatronOptimizer | None, batch: Batch, rank: int
) -> tuple[AuditFinding, ...]:
    """List the bad tensors of this rank.

    Args:
        chunks: model chunks.
        names: map of their parameters.
        optimizer: as the factory returned it; None where only the chunks are known.
        batch: the recorded micro-batches.
        rank: global rank.
    Sync: one host read, and a few more per bad tensor.
    """
    kept = optimizer_parameters(optimizer)
    audited = [*_weights(names, kept), *_state(names, kept), *_buffers(chunks), *_data(batch)]
    audited = [one for one in audited if one.tensor.is_floating_point() and one.tensor.numel()]
    findings = []
    for one, (low, high) in zip(audited, _ranges([one.tensor for one in audited]), strict=True):
        pattern = _pattern(one, low, high)
        if pattern is not None:
            findings.append(_finding(one, pattern, names, rank))
    return tuple(findings)


def _weights(names: ParameterMap, kept: Sequence[OptimizerParameter]) -> Iterator[_AuditedTensor]:
    copies = {id(one.param): one for one in kept if one.param is not None and one.is_copy}
    held = {id(one.param) for one in kept}
    for entry in names.entries:
        param = names.parameter(entry)
        is_elsewhere = bool(kept) and id(param) not in held
        yield _AuditedTensor("weight", entry.name, param.detach(), copies.get(id(param)), is_elsewhere)


def _state(names: ParameterMap, kept: Sequence[OptimizerParameter]) -> Iterator[_AuditedTensor]:
    for one in kept:
        name = one.place if one.param is None else names.entry(one.param).name
        if one.is_copy:
            yield _AuditedTensor("main_param", name, one.main.detach())
        if "exp_avg" in one.state:
            yield _AuditedTensor("exp_avg", name, one.state["exp_avg"])
        if "exp_avg_sq" in one.state:
            yield _AuditedTensor("exp_avg_sq", name, one.state["exp_avg_sq"])


def _buffers(chunks: Sequence[ModelChunk]) -> Iterator[_AuditedTensor]:
    for path, module in name_modules(chunks).items():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield _AuditedTensor("buffer", f"{path}.{name}", buffer)


def _data(batch: Batch) -> Iterator[_AuditedTensor]:
    for items in batch:
        for number, item in enumerate(items):
            for key, tensor in named_tensors(item, vars_of):
                place = f"micro-batch {number}"
                yield _AuditedTensor("batch", f"{place}, {key}" if key else place, tensor)


@torch.no_grad()
def _ranges(tensors: Sequence[Tensor]) -> list[tuple[float, float]]:
    """Least and largest element of each tensor, NaN where there is one; one host read per device."""
    by_device: dict[torch.device, list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        by_device[tensor.device].append(number)
    found: list[tuple[float, float]] = [(0.0, 0.0)] * len(tensors)
    for numbers in by_device.values():
        values = [torch.stack(torch.aminmax(tensors[number])).float() for number in numbers]
        for number, (low, high) in zip(numbers, torch.stack(values).tolist(), strict=True):
            found[number] = (low, high)
    return found


def _pattern(audited: _AuditedTensor, low: float, high: float) -> Pattern | None:
    if math.isnan(low) or math.isnan(high):
        return "nan+inf" if bool(audited.tensor.isinf().any()) else "nan"
    # A mask in data or in a buffer holds -inf on purpose.
    if high == math.inf or (low == -math.inf and audited.kind not in ("buffer", "batch")):
        return "inf"
    return "negative" if audited.kind == "exp_avg_sq" and low < 0.0 else None


def _finding(audited: _AuditedTensor, pattern: Pattern, names: ParameterMap, rank: int) -> AuditFinding:
    if audited.is_elsewhere:
        return AuditFinding("weight", audited.name, pattern, rank, OWNED_ELSEWHERE)
    if audited.kept is None or audited.kept.param is None:
        return AuditFinding(audited.kind, audited.name, pattern, rank)
    weight = _owned(names, audited.kept.param)
    main = audited.kept.main
    if bool(weight.isfinite().all()):
        return AuditFinding("weight", audited.name, pattern, rank, OWNED_ELSEWHERE)
    if not bool(main.isfinite().all()):
        return AuditFinding("weight", audited.name, pattern, rank, "its main parameter is bad too")
    note = f"its main parameter is finite, largest magnitude {float(main.abs().max()):.3g}"
    return AuditFinding("weight_only", audited.name, pattern, rank, note)


def _owned(names: ParameterMap, param: Parameter) -> Tensor:
    """The elements of a weight whose main parameter is on this rank."""
    flat = param.detach().view(-1)
    shards = names.entry(param).shards
    return torch.cat([flat[start:end] for start, end in shards]) if shards else flat[:0]
