"""Softmax of attention scores with a causal mask, and exp over its range, against float64 on the host."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megatron_nanguard.records.machine.screening import DeviceCheck
from megatron_nanguard.screening.checks.comparing import within
from megatron_nanguard.screening.checks.device_under_test import DeviceUnderTest
from megatron_nanguard.screening.known_data import normals
from megatron_nanguard.tensor_names import dtype_name

HEADS, LENGTH = 4, 256
SPREAD = 6.0
"""Standard deviation of the scores: some rows weight one key, others many."""

# Devices compute exp with an error of some units in the last place of float32, and a larger one for large arguments:
# rounding the argument times log2(e) gives up to 2**-17 at 80. The bound 2**-12 is larger than that, and still finds a
# wrong bit above the twelfth. bfloat16 has 8 bits.
BOUND = {torch.float32: 2.0**-12, torch.bfloat16: 2.0**-7}
SMALLEST = 2.0**-126
"""Devices may flush smaller numbers to zero."""


def check(tested: DeviceUnderTest) -> Iterator[DeviceCheck]:
    """Softmax in float32 and bfloat16, exp in float32."""
    scores = SPREAD * normals((HEADS, LENGTH, LENGTH), "scores")
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    for dtype in BOUND:
        masked = scores.to(dtype).masked_fill(hidden, -torch.inf)
        yield _softmax(tested, masked, dtype)
    yield _exp(tested)


def _softmax(tested: DeviceUnderTest, scores: Tensor, dtype: torch.dtype) -> DeviceCheck:
    outputs, seconds = tested.repeat(lambda on_device: torch.softmax(on_device, -1), scores)
    expected = torch.softmax(scores.double(), -1)
    name = f"causal softmax, {dtype_name(dtype)}"
    return within(name, outputs, expected, BOUND[dtype] * expected + SMALLEST, seconds)


def _exp(tested: DeviceUnderTest) -> DeviceCheck:
    arguments = torch.linspace(-80.0, 80.0, HEADS * LENGTH * LENGTH)
    outputs, seconds = tested.repeat(torch.exp, arguments)
    expected = torch.exp(arguments.double())
    return within("exp, float32", outputs, expected, BOUND[torch.float32] * expected, seconds)
