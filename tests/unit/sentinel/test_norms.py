"""Norms in fp32, by either way that torch offers."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_nanguard.sentinel import norms
from megatron_nanguard.sentinel.norms import norms_of


@pytest.mark.parametrize("takes_dtype", [True, False])
def test_norms_are_summed_up_in_fp32(monkeypatch: pytest.MonkeyPatch, takes_dtype: bool) -> None:
    monkeypatch.setattr(norms, "TAKES_DTYPE", takes_dtype)
    # 4 times 40000 squared is beyond fp16, and so is their root: 80000.
    half = torch.full((2, 2), 40000.0, dtype=torch.float16)
    found = norms_of(
        [half, torch.empty(0, dtype=torch.float16), torch.tensor([3.0, math.nan]), torch.tensor([3.0, 4.0])]
    )
    assert found.dtype == torch.float32
    assert found[[0, 1, 3]].tolist() == [80000.0, 0.0, 5.0]
    assert math.isnan(found[2])


def test_the_torch_here_is_asked_what_it_takes() -> None:
    torch._foreach_norm([torch.ones(1)], 2, *([torch.float32] if norms.TAKES_DTYPE else []))
    assert norms.TAKES_DTYPE is ("dtype" in str(torch.ops.aten._foreach_norm.Scalar._schema))
