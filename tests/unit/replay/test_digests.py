"""Digests of tensors: equal for equal bits, different for anything else."""

from __future__ import annotations

import pytest
import torch

from megatron_nanguard.replay import digests
from megatron_nanguard.replay.digests import digest, named_digests

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 1000])
def test_a_copy_has_the_same_digest(dtype: torch.dtype, size: int) -> None:
    tensor = torch.randint(0, 2, (size,)).to(dtype)
    assert digest(tensor).item() == digest(tensor.clone()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_single_bit_counts(dtype: torch.dtype) -> None:
    tensor = torch.zeros(9, dtype=dtype)
    seen = {digest(tensor).item()}
    for place in range(tensor.nbytes * 8):
        changed = tensor.clone()
        changed.view(torch.uint8)[place // 8] |= 1 << place % 8
        seen.add(digest(changed).item())
    assert len(seen) == tensor.nbytes * 8 + 1


def test_places_count_across_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "RUN", 4)
    values = torch.arange(1.0, 25.0)
    swapped_runs = torch.cat([values[8:16], values[:8], values[16:]])
    swapped_words = values.clone()
    swapped_words[[0, 2]] = values[[2, 0]]
    assert len({digest(tensor).item() for tensor in (values, swapped_runs, swapped_words)}) == 3


def test_signs_that_are_flipped_in_pairs_do_not_cancel_out() -> None:
    tensor = torch.arange(1.0, 9.0)
    seen = {digest(tensor).item()}
    for one in range(8):
        for other in range(one):
            flipped = tensor.clone()
            flipped[[one, other]] *= -1
            seen.add(digest(flipped).item())
    assert len(seen) == 1 + 28


def test_a_word_whose_upper_half_is_flipped_is_another_word() -> None:
    # A shift that keeps the sign would map both to the same word.
    upper, flipped = 0x40000000, ~0x40000000
    one = torch.tensor([0, upper], dtype=torch.int32)
    other = torch.tensor([upper ^ flipped, flipped], dtype=torch.int32)
    assert digest(one).item() != digest(other).item()


def test_zeros_of_different_sign_and_nans_of_different_payload_differ() -> None:
    zeros = torch.tensor([0.0, -0.0])
    assert digest(zeros[:1]).item() != digest(zeros[1:]).item()
    nans = torch.tensor([0x7FC00000, 0x7FC0DEAD], dtype=torch.int32).view(torch.float32)
    assert digest(nans[:1]).item() != digest(nans[1:]).item()


def test_named_digests_are_sixteen_digits_of_the_same_number() -> None:
    tensors = {"a": torch.arange(5.0), "b": torch.arange(5.0), "c": -torch.arange(5.0)}
    found = named_digests(tensors)
    assert found["a"] == found["b"] != found["c"]
    assert {len(text) for text in found.values()} == {16}
    assert (int(found["a"], 16) - digest(tensors["a"]).item()) % 2**64 == 0


def test_a_view_is_digested_by_its_own_elements() -> None:
    base = torch.arange(12.0).view(3, 4)
    assert digest(base.t()).item() == digest(base.t().contiguous()).item()
    assert digest(base.view(-1)[1:3]).item() == digest(torch.tensor([1.0, 2.0])).item()
