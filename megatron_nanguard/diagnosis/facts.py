"""What an origin shows by itself, asked by several rules alike."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.origins import UNSEEN_WRITER, is_reducing
from megatron_nanguard.diagnosis.wording import name_ranks
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.trace import OriginKind

NARROW_RANGE = ("float16", "float8")
"""Types that overflow at values a healthy model can reach."""

UNDEFINED_SOMEWHERE = frozenset(
    {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "div", "reciprocal", "acos", "asin", "atanh", "sub"}
)
"""Operators that make NaN or Inf of finite values by their definition."""

AROUND_THE_LOSS = ("forward", "recompute", "backward", "finalize")
"""Phases in which a denominator of the loss is used; finalizing divides by the tokens of all ranks."""

LARGE = 1e15
"""Some thousand products of two such values are beyond float32."""
ORDINARY = 1e6

EXPONENTIAL = frozenset({"exp", "exp2", "expm1", "cosh", "sinh"})

LIKE_MEMORY = ("aligned block", "tail of", "to the end")
"""How the tracer describes positions that arithmetic seldom produces: they follow memory, not values."""


def base_name(operator: str) -> str:
    """An operator without namespace, overload and in-place mark: "aten.log_.default" -> "log"."""
    name = operator.removeprefix("aten::").removeprefix("aten.").split(".")[0]
    return name.strip("_")


def named(origin: Origin) -> str:
    """An origin in a sentence: "log in decoder.layers.3.mlp (rank 5, backward of micro-batch 2)"."""
    when = origin.phase if origin.microbatch is None else f"{origin.phase} of micro-batch {origin.microbatch}"
    what = f"{origin.operator} on {origin.output}" if origin.operator == UNSEEN_WRITER else origin.operator
    where = f" in {origin.module}" if origin.module else ""
    return f"{what}{where} ({name_ranks(origin.ranks or (origin.rank,))}, {when})"


def of_kind(evidence: Evidence, *kinds: OriginKind) -> Iterator[Origin]:
    """The origins at which the walk ended in one of these ways."""
    return (origin for origin in evidence.origins if origin.kind in kinds)


def operators(evidence: Evidence, *names: str) -> Iterator[Origin]:
    """The origins made by an operator of one of these base names."""
    return (origin for origin in of_kind(evidence, OriginKind.OPERATOR) if base_name(origin.operator) in names)


def is_in_loss(origin: Origin) -> bool:
    """Whether it happened in the loss function: outside of any module, or in code that says so."""
    if origin.phase not in AROUND_THE_LOSS or origin.kind is not OriginKind.OPERATOR:
        return False
    return not origin.module or "loss" in origin.module.lower() or "loss" in (origin.source_line or "").lower()


def is_sum_overflow(origin: Origin) -> bool:
    """A sum over ranks that came out as Inf everywhere: what was sent was finite, and too large together."""
    members = origin.kind is OriginKind.COMMUNICATION
    return members and origin.pattern == "inf" and is_reducing(origin.operator)


def is_narrow_overflow(origin: Origin) -> bool:
    """An Inf in a type of narrow range."""
    return origin.pattern == "inf" and origin.facts is not None and origin.facts.dtype.startswith(NARROW_RANGE)


def is_large_in(origin: Origin) -> bool:
    """Whether an input is so large that products of such values overflow."""
    return any(each.absmax is not None and each.absmax > LARGE for each in origin.inputs)


def is_small_in(origin: Origin) -> bool:
    """Whether every input was measured and is of ordinary size, with which only a division or exponential overflows."""
    sizes = [each.absmax for each in origin.inputs]
    is_steep = base_name(origin.operator) in EXPONENTIAL | UNDEFINED_SOMEWHERE
    return bool(sizes) and not is_steep and all(size is not None and size < ORDINARY for size in sizes)


def is_laid_out_like_memory(origin: Origin) -> bool:
    """Whether the bad positions follow blocks, rows or a tail."""
    return origin.facts is not None and any(word in origin.facts.layout for word in LIKE_MEMORY)


def is_outside(origin: Origin, what: str) -> bool:
    """Whether a tensor from before the trace is of a kind: "parameter", "gradient of", "buffer", "tensor"."""
    return origin.kind is OriginKind.OUTSIDE and origin.operator.startswith(what)


def alike(evidence: Evidence) -> tuple[int, ...]:
    """The ranks that share module and operator of the first origin, when there are several of them."""
    if not evidence.origins:
        return ()
    first = evidence.origins[0]
    same = {
        each.rank
        for each in evidence.origins
        if (each.module, each.operator, each.phase) == (first.module, first.operator, first.phase)
    }
    return tuple(sorted(same)) if len(same) > 1 else ()


def has_finite_losses(evidence: Evidence) -> bool:
    """Whether losses are known and all of them are finite."""
    return bool(evidence.losses) and not any(losses.nonfinite_ranks for losses in evidence.losses)


def usable(evidence: Evidence) -> tuple[Arbitration, ...]:
    """The calls run again whose inputs were finite: the others prove nothing about what computed them."""
    return tuple(arbitration for arbitration in evidence.arbitrations if not arbitration.inputs_bad)


def tried(arbitration: Arbitration) -> str:
    """The call in a sentence."""
    return f"{arbitration.operator} on rank {arbitration.rank}"


def reference(arbitration: Arbitration) -> str:
    """The outcome of the most exact reference that ran: "bad", "finite" or "not_tried"."""
    for outcome in (arbitration.reference_fp64, arbitration.reference_fp32):
        if outcome in ("bad", "finite"):
            return outcome
    return "not_tried"


def is_always_bad(arbitration: Arbitration) -> bool:
    """Whether it failed every time on the device that is accused."""
    return 0 < arbitration.repeats == arbitration.repeats_bad
