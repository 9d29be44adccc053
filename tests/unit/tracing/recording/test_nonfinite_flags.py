"""Flags: which bad values they distinguish, and which tensors have none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from megatron_nanguard.tracing.recording.nonfinite_flags import NAN, NEGATIVE_INF, POSITIVE_INF, NonfiniteFlags, pattern

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def bits_of(*tensors: Tensor) -> list[int]:
    flags = NonfiniteFlags()
    slots = [flags.put(tensor) for tensor in tensors]
    flags.read()
    return [flags.bits(slot) for slot in slots]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("value", "bits"),
    [(1e4, 0), (math.inf, POSITIVE_INF), (-math.inf, NEGATIVE_INF), (math.nan, NAN)],
)
def test_one_bad_element_is_seen_in_every_dtype(dtype: torch.dtype, value: float, bits: int) -> None:
    tensor = torch.ones(37, dtype=dtype)
    tensor[35] = value
    assert bits_of(tensor) == [bits]


def test_both_infinities_are_flagged() -> None:
    assert bits_of(torch.tensor([-math.inf, 0.0, math.inf])) == [NEGATIVE_INF | POSITIVE_INF]


def test_flags_of_several_dtypes_keep_apart() -> None:
    bad = torch.tensor([math.nan])
    assert bits_of(torch.ones(1), bad.double(), bad, torch.ones(1).double()) == [0, NAN, NAN, 0]


def test_more_tensors_than_a_block_holds() -> None:
    tensors = [torch.tensor([math.nan if number == 1500 else 1.0]) for number in range(2500)]
    assert [number for number, bits in enumerate(bits_of(*tensors)) if bits] == [1500]


def test_complex_and_fp8_are_looked_at() -> None:
    fp8 = torch.tensor([1.0, math.nan]).to(torch.float8_e5m2)
    assert bits_of(torch.tensor([complex(0, math.nan)]), fp8, torch.ones(2).to(torch.float8_e5m2)) == [NAN, NAN, 0]


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, dtype=torch.int64), torch.empty(0), torch.eye(2).to_sparse(), torch.ones(2, device="meta")],
    ids=["integers", "empty", "sparse", "meta"],
)
def test_what_cannot_be_looked_at_has_no_flag(tensor: Tensor) -> None:
    assert NonfiniteFlags().put(tensor) is None


def test_flag_is_of_the_moment_it_was_put() -> None:
    tensor, flags = torch.ones(3), NonfiniteFlags()
    before = flags.put(tensor)
    tensor[0] = math.nan
    after = flags.put(tensor)
    flags.read()
    assert (flags.bits(before), flags.bits(after)) == (0, NAN)


@pytest.mark.parametrize(
    ("bits", "word"),
    [(0, "finite"), (NAN, "nan"), (POSITIVE_INF, "inf"), (NEGATIVE_INF | POSITIVE_INF, "inf"), (NAN | 1, "nan")],
)
def test_patterns(bits: int, word: str) -> None:
    assert pattern(bits) == word
