"""Matrix products: of whole numbers, compared exactly, and of normal numbers, compared within a bound."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from megatron_nanguard.records.machine.screening import DeviceCheck
from megatron_nanguard.screening.checks.comparing import exact, within
from megatron_nanguard.screening.checks.device_under_test import DeviceUnderTest
from megatron_nanguard.screening.known_data import integers, normals
from megatron_nanguard.tensor_names import dtype_name

ROWS, INNER = 384, 256

# A bfloat16 is exact for whole numbers up to 256. With entries -1, 0 and 1 every partial sum of 256 products stays in
# that range, so neither the order of the sums nor rounding to bfloat16 changes a bit. TF32 keeps 11 bits of a factor. A
# float32 is exact for whole numbers up to 2**24 = 64 * 64 * 4096.
LARGEST = {torch.bfloat16: 1, torch.float32: 64}

# Relative to |a| @ |b|. Factors are exact in bfloat16, the sum and its split parts are rounded to 8 bits. TF32 rounds
# each factor to 11 bits, which gives twice 2**-11, and the sum of 256 products in float32 adds 2**-16.
BOUND = {torch.bfloat16: 2.0**-7, torch.float32: 2.0**-9}


def check(tested: DeviceUnderTest) -> Iterator[DeviceCheck]:
    """Both kinds, in bfloat16 and in float32."""
    for dtype in (torch.bfloat16, torch.float32):
        short = dtype_name(dtype)
        yield _whole_numbers(tested, dtype, f"matmul of whole numbers, {short}")
        yield _normal_numbers(tested, dtype, f"matmul, {short}")


def _whole_numbers(tested: DeviceUnderTest, dtype: torch.dtype, name: str) -> DeviceCheck:
    a = integers((ROWS, INNER), LARGEST[dtype], name, "a").to(dtype)
    b = integers((INNER, ROWS), LARGEST[dtype], name, "b").to(dtype)
    outputs, seconds = tested.repeat(torch.matmul, a, b)
    return exact(name, outputs, a.double() @ b.double(), seconds)


def _normal_numbers(tested: DeviceUnderTest, dtype: torch.dtype, name: str) -> DeviceCheck:
    a, b = normals((ROWS, INNER), name, "a").to(dtype), normals((INNER, ROWS), name, "b").to(dtype)
    outputs, seconds = tested.repeat(torch.matmul, a, b)
    bound = BOUND[dtype] * (a.double().abs() @ b.double().abs())
    return within(name, outputs, a.double() @ b.double(), bound, seconds)
