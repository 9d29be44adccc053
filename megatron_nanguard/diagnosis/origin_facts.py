"""What an origin shows by itself, asked by several rules alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.joining.origins import UNSEEN_WRITER, is_reducing
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.place_words import place_words
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.records.trace import NUMBER, OriginKind, TensorFacts

NARROW_RANGE = ("float16", "float8")
"""Types that overflow at values a healthy model can reach."""

UNDEFINED_SOMEWHERE = frozenset(
    {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "div", "reciprocal", "acos", "asin", "atanh", "sub"}
)
"""Operators that make NaN or Inf of finite values by their definition."""

OF_ACTIVATIONS: Final = ("forward", "recompute", "backward")
"""Phases whose communications carry activations, which no option for gradients reaches."""

AROUND_THE_LOSS = ("forward", "recompute", "backward", "finalize")
"""Phases in which a denominator of the loss is used; finalizing divides by the tokens of all ranks."""

LARGE = 1e15
"""Some thousand products of two such values are beyond float32."""
ORDINARY = 1e6

DOMAINS: Final[dict[str, tuple[float, float, bool]]] = {
    "log": (0.0, math.inf, False),
    "log2": (0.0, math.inf, False),
    "log10": (0.0, math.inf, False),
    "log1p": (-1.0, math.inf, False),
    "sqrt": (0.0, math.inf, True),
    "rsqrt": (0.0, math.inf, False),
    "acos": (-1.0, 1.0, True),
    "asin": (-1.0, 1.0, True),
    "atanh": (-1.0, 1.0, False),
}
"""Between which values a function of one argument is finite, and whether at the ends too."""

EXPONENTIAL = frozenset({"exp", "exp2", "expm1", "cosh", "sinh"})

LIKE_MEMORY = ("aligned block", "tail of", "to the end")
"""How the tracer describes positions that arithmetic seldom produces: they follow memory, not values."""


def base_name(operator: str) -> str:
    """An operator without namespace, overload and in-place mark: "aten.log_.default" -> "log"."""
    name = operator.removeprefix("aten::").removeprefix("aten.").split(".")[0]
    return name.strip("_")


def named(origin: Origin, evidence: Evidence) -> str:
    """An origin in a sentence: "log in decoder.layers.3.mlp"; of several, "... (rank 5, backward of micro-batch 2)"."""
    what = origin.operator
    if what == UNSEEN_WRITER:
        what = phrase("{operator} on {output}", operator=UNSEEN_WRITER, output=origin.output)
    if origin.module:
        what = phrase("{operator} in {module}", operator=what, module=origin.module)
    if len(evidence.origins) < 2:
        return what
    ranks = name_ranks(origin.members)
    return phrase("{what} ({ranks}, {when})", what=what, ranks=ranks, when=place_words(origin.phase, origin.microbatch))


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
    file_and_function = (origin.source_line or "").rpartition("/")[2]
    return not origin.module or "loss" in origin.module.lower() or "loss" in file_and_function.lower()


def is_sum_overflow(origin: Origin) -> bool:
    """A sum over ranks that came out as Inf everywhere: what was sent was finite, and too large together."""
    members = origin.kind is OriginKind.COMMUNICATION
    return members and origin.pattern == "inf" and is_reducing(origin.operator)


def is_narrow_overflow(origin: Origin) -> bool:
    """An Inf in a type of narrow range, made by an operator."""
    if origin.kind is OriginKind.COMMUNICATION:
        return False
    return origin.pattern == "inf" and origin.facts is not None and origin.facts.dtype.startswith(NARROW_RANGE)


def is_large_in(origin: Origin) -> bool:
    """Whether an input is so large that products of such values overflow."""
    return any(each.absmax is not None and each.absmax > LARGE for each in origin.inputs)


def is_small_in(origin: Origin) -> bool:
    """Whether every input was measured and is of ordinary size, with which only a division or exponential overflows."""
    sizes = [each.absmax for each in origin.inputs]
    is_steep = base_name(origin.operator) in EXPONENTIAL | UNDEFINED_SOMEWHERE
    return bool(sizes) and not is_steep and all(size is not None and size < ORDINARY for size in sizes)


def bad_number(origin: Origin) -> TensorFacts | None:
    """A plain number among the arguments that is NaN; None where there is none. An Inf may be meant."""
    return next((each for each in origin.inputs if each.dtype == NUMBER and each.pattern == "nan"), None)


def span(origin: Origin) -> tuple[float, float] | None:
    """Smallest and largest finite value that went in; None where that was not measured."""
    ends = [
        (each.lowest, each.highest) for each in origin.inputs if each.lowest is not None and each.highest is not None
    ]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def is_inside_domain(origin: Origin) -> bool:
    """Whether every value that went in is known to be one for which the function is finite."""
    domain, ends = DOMAINS.get(base_name(origin.operator)), span(origin)
    if domain is None or ends is None:
        return False
    lowest, highest, is_closed = domain
    return lowest <= ends[0] and ends[1] <= highest if is_closed else lowest < ends[0] and ends[1] < highest


def is_undefined_somewhere(origin: Origin) -> bool:
    """Whether by its definition the operator may give NaN or Inf for what went in."""
    return base_name(origin.operator) in UNDEFINED_SOMEWHERE and not is_inside_domain(origin)


def is_laid_out_like_memory(origin: Origin) -> bool:
    """Whether the bad positions follow blocks, rows or a tail."""
    return origin.facts is not None and any(word in origin.facts.layout for word in LIKE_MEMORY)


def is_outside(origin: Origin, what: str) -> bool:
    """Whether a tensor from before the trace is of a kind: "parameter", GRADIENT_OF, "buffer", "tensor"."""
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
    return phrase("{operator} on rank {rank}", operator=arbitration.operator, rank=arbitration.rank)


def reference(arbitration: Arbitration) -> str:
    """The outcome of the most exact reference that ran: "bad", "finite" or "not_tried"."""
    for outcome in (arbitration.reference_fp64, arbitration.reference_fp32):
        if outcome in ("bad", "finite"):
            return outcome
    return "not_tried"


def is_always_bad(arbitration: Arbitration) -> bool:
    """Whether it failed every time on the device that is accused."""
    return 0 < arbitration.repeats == arbitration.repeats_bad
