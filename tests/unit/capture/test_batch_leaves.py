"""Micro-batches taken apart and put together again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron_nanguard.capture.batch_leaves import Batcher, put_together
from megatron_nanguard.errors import ReplayError
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.step.capture import CapturedIterator, Leaf

CPU = torch.device("cpu")
ITEM = {
    "tokens": torch.tensor([[1, 2]]),
    "nested": [(torch.tensor([0.5]), None), {}, []],
    3: {"flag": True, "count": -7, "rate": float("inf"), "text": "a sample"},
}


def through_a_file(batch: Any, *, keeps_text: bool = True) -> tuple[Any, Batcher]:
    """The batch by way of JSON."""
    batcher = Batcher(keeps_text)
    iterators = [from_json(CapturedIterator, to_json(one)) for one in batcher.take_apart(batch)]
    return put_together(iterators, batcher.tensors, CPU), batcher


def test_containers_keys_and_values_come_back_as_they_were() -> None:
    ((found,),), batcher = through_a_file([[ITEM]])

    assert list(found) == ["tokens", "nested", 3]
    assert found["tokens"].tolist() == [[1, 2]]
    assert found["nested"][0][0].tolist() == [0.5]
    assert (found["nested"][0][1], found["nested"][1:]) == (None, [{}, []])
    assert type(found["nested"][0]) is tuple
    assert found[3] == {"flag": True, "count": -7, "rate": float("inf"), "text": "a sample"}
    assert type(found[3]["flag"]) is bool
    assert sorted(batcher.tensors) == ["batch/0/0/nested/0/0", "batch/0/0/tokens"]
    assert batcher.left_out == []


def test_several_iterators_and_bare_tensors_keep_their_order() -> None:
    (first, second), _ = through_a_file([[torch.tensor(1), torch.tensor(2)], [torch.tensor(3)]])
    assert ([one.item() for one in first], [one.item() for one in second]) == ([1, 2], [3])


def test_keys_that_spell_the_same_path_name_two_tensors() -> None:
    ((found,),), _ = through_a_file([[{"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}}]])
    assert (found["a/b"].item(), found["a"]["b"].item()) == (1, 2)


def test_sample_text_is_kept_only_where_it_is_asked_for() -> None:
    ((found,),), batcher = through_a_file([[ITEM]], keeps_text=False)
    assert found[3]["text"] == ""
    ((item,),) = [one.items for one in batcher.take_apart([[{"id": "secret"}]])]
    assert item.leaves == (Leaf((), "dict"), Leaf(('"id"',), "str", ""))


def test_a_value_that_cannot_be_saved_is_named_and_forbids_a_reload() -> None:
    batcher = Batcher(keeps_text=True)
    iterators = batcher.take_apart(
        [[{"packed": SimpleNamespace(n=1), "keys": {None: 1}, "c": torch.ones(1).to_sparse()}]]
    )
    assert batcher.left_out == [
        "batch/0/0/packed: a SimpleNamespace has no form in a file",
        "batch/0/0/keys: a dict has no form in a file",
        "batch/0/0/c: a Tensor has no form in a file",
    ]
    with pytest.raises(ReplayError, match="held a SimpleNamespace, which could not be saved"):
        put_together(iterators, {}, CPU)


def test_a_tensor_that_is_missing_is_named() -> None:
    iterators = Batcher(keeps_text=True).take_apart([[torch.tensor(1)]])
    with pytest.raises(ReplayError, match="the capture has no tensor batch/0/0"):
        put_together(iterators, {}, CPU)
