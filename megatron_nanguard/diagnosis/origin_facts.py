"""What one origin shows by itself: range and domain of its inputs, place in the step, layout of the bad positions."""

from __future__ import annotations

import math
from typing import Final

from megatron_nanguard.diagnosis.joining.origins import is_reducing
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.trace import NUMBER, OriginKind, TensorFacts

UNDEFINED_SOMEWHERE: Final = frozenset(
    {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "div", "reciprocal", "acos", "asin", "atanh", "sub"}
)
"""Operators that by their definition make NaN or Inf of some finite values."""

EXPONENTIAL: Final = frozenset({"exp", "exp2", "expm1", "cosh", "sinh"})

OF_ACTIVATIONS: Final = ("forward", "recompute", "backward")
"""Phases whose communications carry activations. No option for gradients reaches them."""

AROUND_THE_LOSS: Final = (*OF_ACTIVATIONS, "finalize")
"""Phases that divide by a count of tokens. Finalizing divides by the tokens of all ranks."""

HUGE: Final = 1e15
"""A few thousand products of two such values overflow float32."""
ORDINARY: Final = 1e6
"""Smaller values overflow only in a division or an exponential."""

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
"""For functions of one argument: the interval on which they are finite, and whether its ends belong to it."""


def base_name(operator: str) -> str:
    """An operator without namespace, overload and in-place mark: "aten.log_.default" -> "log"."""
    name = operator.removeprefix("aten::").removeprefix("aten.").split(".")[0]
    return name.strip("_")


def is_in_loss(origin: Origin) -> bool:
    """Whether it happened in the loss function: outside of any module, or in code that is named after the loss."""
    if origin.phase not in AROUND_THE_LOSS or origin.kind is not OriginKind.OPERATOR:
        return False
    file_and_function = (origin.source_line or "").rpartition("/")[2]
    return not origin.module or "loss" in origin.module.lower() or "loss" in file_and_function.lower()


def is_sum_overflow(origin: Origin) -> bool:
    """Whether a sum over ranks became Inf although every rank sent finite values."""
    is_communication = origin.kind is OriginKind.COMMUNICATION
    return is_communication and origin.pattern == "inf" and is_reducing(origin.operator)


def is_narrow_overflow(origin: Origin) -> bool:
    """Whether an operator made Inf in fp16 or fp8, which overflow at values that a healthy model can reach."""
    if origin.kind is OriginKind.COMMUNICATION or origin.facts is None:
        return False
    return origin.pattern == "inf" and origin.facts.dtype.startswith(("float16", "float8"))


def has_huge_input(origin: Origin) -> bool:
    """Whether an input is so large that products of such values overflow."""
    return any(each.absmax is not None and each.absmax > HUGE for each in origin.inputs)


def has_only_ordinary_inputs(origin: Origin) -> bool:
    """Whether no input can explain an overflow: all were measured and are small, and the operator is not steep."""
    sizes = [each.absmax for each in origin.inputs]
    is_steep = base_name(origin.operator) in EXPONENTIAL | UNDEFINED_SOMEWHERE
    return bool(sizes) and not is_steep and all(size is not None and size < ORDINARY for size in sizes)


def is_region(origin: Origin) -> bool:
    """Whether it is a call that hides its kernels: the forward or backward of an autograd.Function, or of a module."""
    return origin.kind is OriginKind.UNSEEN and names_region(origin)


def names_region(origin: Origin) -> bool:
    """Whether the operator is the name of a forward or backward."""
    return origin.operator.endswith((".forward", "Backward"))


def has_hidden_input(origin: Origin) -> bool:
    """Whether something went into a region that was not looked at, or that may be too large for it."""
    return is_region(origin) and (bool(origin.not_seen) or not origin.inputs or has_huge_input(origin))


def has_only_ordinary_arguments(origin: Origin) -> bool:
    """Whether all that went into a region was looked at, is finite and of a size that overflows nowhere."""
    return (
        not origin.not_seen
        and all(each.pattern == "finite" for each in origin.inputs)
        and (has_only_ordinary_inputs(origin))
    )


def nan_argument(origin: Origin) -> TensorFacts | None:
    """The argument that is a plain number and NaN; None without one. A plain Inf may be meant, so it does not count."""
    return next((each for each in origin.inputs if each.dtype == NUMBER and each.pattern == "nan"), None)


def input_range(origin: Origin) -> tuple[float, float] | None:
    """Smallest and largest finite value of all inputs; None where no input was measured."""
    ends = [
        (each.lowest, each.highest) for each in origin.inputs if each.lowest is not None and each.highest is not None
    ]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def is_inside_domain(origin: Origin) -> bool:
    """Whether the function is known to be finite for every value that it was given."""
    domain, ends = DOMAINS.get(base_name(origin.operator)), input_range(origin)
    if domain is None or ends is None:
        return False
    lowest, highest, is_closed = domain
    return lowest <= ends[0] and ends[1] <= highest if is_closed else lowest < ends[0] and ends[1] < highest


def may_be_undefined(origin: Origin) -> bool:
    """Whether by its definition the operator may give NaN or Inf for the values that it was given."""
    return base_name(origin.operator) in UNDEFINED_SOMEWHERE and not is_inside_domain(origin)


def is_laid_out_like_memory(origin: Origin) -> bool:
    """Whether the bad positions follow blocks, rows or a tail of memory, which arithmetic seldom produces."""
    layouts = ("aligned block", "tail of", "to the end")
    return origin.facts is not None and any(words in origin.facts.layout for words in layouts)
