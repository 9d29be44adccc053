"""A close look at one tensor: how many bad elements, where, and what their positions have in common."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from torch import Tensor

from megatron_nanguard.records.trace import NUMBER, TensorFacts, pattern_of
from megatron_nanguard.tensor_names import dtype_name, element_index
from megatron_nanguard.tracing.recording.nonfinite_flags import can_be_bad

_MOST_POSITIONS: Final = 8
_SMALLEST_BLOCK: Final = 16


def look_closely(tensor: Tensor, name: str, heads: Collection[int] = ()) -> TensorFacts:
    """Count and locate what is bad in a tensor.

    Args:
        tensor: any shape, on the training device.
        name: of the argument or output.
        heads: numbers of attention heads that a module can have on this rank; a dim of such a length counts heads.
    Sync: several host reads. Use it for the few tensors that matter.
    """
    shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
    if not can_be_bad(tensor):
        return TensorFacts(name, shape, dtype, "finite")
    values = tensor.detach() if tensor.is_complex() or tensor.element_size() > 1 else tensor.detach().float()
    bad = ~values.isfinite()
    nan_count, num_bad = int(values.isnan().sum()), int(bad.sum())
    finite = values[~bad]
    lowest, highest = _ends(finite)
    return TensorFacts(
        name=name,
        shape=shape,
        dtype=dtype,
        pattern=pattern_of(nan_count, num_bad - nan_count),
        nan_count=nan_count,
        inf_count=num_bad - nan_count,
        absmax=float(finite.abs().max()) if finite.numel() else None,
        positions=_first_positions(bad, num_bad),
        layout=_layout(bad, num_bad, heads) if num_bad > 1 else "",
        lowest=lowest,
        highest=highest,
    )


def number_facts(name: str, value: float) -> TensorFacts:
    """Facts of an argument that is a plain number."""
    is_inf = math.isinf(value)
    return TensorFacts(name, (), NUMBER, pattern_of(int(math.isnan(value)), int(is_inf)))


def _ends(finite: Tensor) -> tuple[float | None, float | None]:
    """The smallest and largest element; None if there is none, or if the elements are complex."""
    if not finite.numel() or finite.is_complex():
        return None, None
    lowest, highest = finite.aminmax()
    return float(lowest), float(highest)


def _first_positions(bad: Tensor, num_bad: int) -> tuple[tuple[int, ...], ...]:
    # Not nonzero(): for a large tensor that is all bad it returns eight bytes per element and dim.
    flat, start, positions = bad.reshape(-1).byte(), 0, []
    for _ in range(min(num_bad, _MOST_POSITIONS)):
        start += int(flat[start:].argmax())
        positions.append(element_index(start, bad.shape))
        start += 1
    return tuple(positions)


def _layout(bad: Tensor, num_bad: int, heads: Collection[int]) -> str:
    """Words for what the bad positions have in common; empty if they have nothing in common."""
    if num_bad == bad.numel():
        return "every element"
    bad_indices = [_indices(bad, dim) for dim in range(bad.dim())]
    if math.prod(map(len, bad_indices)) == num_bad:
        partly = [dim for dim in range(bad.dim()) if len(bad_indices[dim]) < bad.shape[dim]]
        words = [_dim(dim, bad_indices[dim], bad.shape, heads) for dim in partly]
        if bad.dim() > 1 and all(words):
            return ", ".join(words)
    return _run(bad.reshape(-1), num_bad)


def _indices(bad: Tensor, dim: int) -> list[int]:
    others = [other for other in range(bad.dim()) if other != dim]
    line = bad.any(others) if others else bad
    indices: list[int] = line.nonzero().flatten().tolist()
    return indices


def _dim(dim: int, indices: list[int], shape: Sequence[int], heads: Collection[int]) -> str:
    """Words for the bad part of one dim, such as "rows 5 to 7"; empty if the indices are scattered."""
    first, last = indices[0], indices[-1]
    if last - first + 1 != len(indices):
        return ""
    which = str(first) if first == last else f"{first} to {last}"
    plural = "" if first == last else "s"
    end = ", to the end" if first < last == shape[dim] - 1 and first > 0 else ""
    if len(shape) > 2 and dim < len(shape) - 1 and shape[dim] in heads:
        return f"head{plural} {which} (dim {dim})"
    if dim == 0:
        return f"row{plural} {which}{end}"
    if len(shape) == 2:
        return f"column{plural} {which}"
    return f"{which} of dim {dim}"


def _run(flat: Tensor, num_bad: int) -> str:
    """Words for bad elements that lie side by side in memory; empty if they do not."""
    numel = flat.numel()
    first = int(flat.byte().argmax())
    last = numel - 1 - int(flat.flip(0).byte().argmax())
    if last - first + 1 != num_bad:
        return ""
    is_block = num_bad >= _SMALLEST_BLOCK and num_bad & (num_bad - 1) == 0 and first % num_bad == 0
    if is_block:
        return f"aligned block of {num_bad} from element {first}"
    if last == numel - 1:
        return f"tail of {num_bad} from element {first}"
    return f"run of {num_bad} from element {first}"
