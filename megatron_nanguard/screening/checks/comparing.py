"""Compares an output with a reference computed on the host: exactly, or within a bound.

wrong in 2 of 3 calls, 17 of 131072 values; worst [5, 3, 100]: 96.0, expected 32.0
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megatron_nanguard.records.machine.screening import DeviceCheck
from megatron_nanguard.screening.known_data import digest_of


def exact(name: str, outputs: Sequence[Tensor], expected: Tensor, seconds: float) -> DeviceCheck:
    """Compare outputs that are exact in any order of additions.

    Args:
        name: name of the check.
        outputs: [copies, ...] of each call, in host memory.
        expected: [...], of one copy.
        seconds: duration of the fastest call.
    """
    return within(name, outputs, expected, torch.zeros_like(expected, dtype=torch.float64), seconds)


def within(name: str, outputs: Sequence[Tensor], expected: Tensor, bound: Tensor, seconds: float) -> DeviceCheck:
    """Compare outputs that may differ from the reference by a bound.

    Args:
        name: name of the check.
        outputs: [copies, ...] of each call, in host memory.
        expected: [...], of one copy.
        bound: float64 [...], largest allowed difference; infinite where nothing is compared.
        seconds: duration of the fastest call.
    """
    reference = expected.double()
    differences = [(output.double() - reference).abs() for output in outputs]
    # Every comparison with NaN is False, so `not (difference <= bound)` finds it.
    wrong = [~(difference <= bound) for difference in differences]
    bad_calls = [number for number, each in enumerate(wrong) if bool(each.any())]
    digest = digest_of(outputs[-1])
    if not bad_calls:
        return DeviceCheck(name, "right", "", digest, seconds)
    first = bad_calls[0]
    flat = torch.unravel_index(
        torch.where(wrong[first], differences[first].nan_to_num(torch.inf), -1.0).argmax(), wrong[first].shape
    )
    index = tuple(int(each) for each in flat)
    words = (
        f"wrong in {len(bad_calls)} of {len(outputs)} calls, {int(wrong[first].sum())} of {wrong[first].numel()} "
        f"values; worst {list(index)}: {float(outputs[first][index]):g}, expected {float(expected[index[1:]]):g}"
    )
    return DeviceCheck(name, "wrong", words, digest, seconds)
