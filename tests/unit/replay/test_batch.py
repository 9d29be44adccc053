"""Copies of what a data iterator hands out, and whether the originals have changed since."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from megatron_nanguard.errors import ReplayError
from megatron_nanguard.replay.batch import FetchedItem, copied, vars_of
from megatron_nanguard.tensor_names import named_tensors


class Batch:
    """A batch class as user code writes it."""

    def __init__(self) -> None:
        self.tokens = torch.tensor([1, 2])
        self.extra = {"mask": torch.tensor([1.0])}


def test_containers_and_tensors_of_a_copy_are_its_own() -> None:
    item: dict[str, Any] = {"tokens": torch.tensor([1, 2]), "images": [torch.tensor([3.0])], "name": "a"}
    kept = copied(item)
    item.pop("tokens")
    item["images"][0].mul_(2.0)
    item["images"].append(None)
    assert list(kept) == ["tokens", "images", "name"]
    assert kept["tokens"].tolist() == [1, 2]
    assert [image.tolist() for image in kept["images"]] == [[3.0]]


def test_an_object_is_copied_with_its_attributes() -> None:
    item = Batch()
    kept = copied(item)
    item.extra["mask"].zero_()
    item.tokens = torch.zeros(2)
    assert type(kept) is Batch
    assert kept.tokens.tolist() == [1, 2]
    assert kept.extra["mask"].tolist() == [1.0]


def test_what_cannot_be_copied_is_named() -> None:
    with pytest.raises(ReplayError, match="a micro-batch holds a generator, which cannot be copied"):
        copied({"rows": (row for row in [1])})


def test_tensors_are_found_with_their_places() -> None:
    item = {"images": [torch.zeros(1), torch.zeros(2)], "batch": Batch(), "count": 3}
    assert [name for name, _ in named_tensors(item, vars_of)] == [
        "images.0",
        "images.1",
        "batch.tokens",
        "batch.extra.mask",
    ]


def test_a_second_thread_that_writes_into_a_batch_after_the_fetch_is_noticed() -> None:
    item = {"tokens": torch.tensor([1, 2]), "loss_mask": torch.tensor([1.0, 0.0])}
    fetched = FetchedItem(item)
    assert fetched.changed() == []
    thread = threading.Thread(target=lambda: item["loss_mask"].numpy().fill(float("nan")))
    thread.start()
    thread.join()
    assert fetched.changed() == ["loss_mask"]
    assert fetched.content["loss_mask"].tolist() == [1.0, 0.0]


def test_what_the_consumer_itself_changes_is_no_news() -> None:
    item = {"loss_mask": torch.tensor([1.0, 1.0]), "tokens": torch.tensor([1, 2])}
    fetched = FetchedItem(item)
    item["loss_mask"].mul_(0.5)
    item["tokens"].add_(1)
    replayed = copied(fetched.content)
    replayed["loss_mask"].mul_(0.5)
    assert fetched.changed() == ["loss_mask", "tokens"]
    assert fetched.changed(consumed=replayed) == ["tokens"]


def test_a_nan_that_was_there_at_the_fetch_is_no_change() -> None:
    item = torch.tensor([float("nan"), 1.0])
    assert FetchedItem(item).changed() == []


def test_originals_are_not_kept_alive() -> None:
    item = {"tokens": torch.tensor([1, 2])}
    fetched = FetchedItem(item)
    item["tokens"].zero_()
    del item["tokens"]
    assert fetched.changed() == []


def test_a_consumer_that_takes_tensors_out_of_its_copy_changes_nothing_here() -> None:
    item = {"tokens": torch.tensor([1]), "loss_mask": torch.tensor([1.0])}
    fetched = FetchedItem(item)
    item["loss_mask"].zero_()
    replayed = copied(fetched.content)
    del replayed["tokens"]
    assert fetched.changed(consumed=replayed) == ["loss_mask"]
