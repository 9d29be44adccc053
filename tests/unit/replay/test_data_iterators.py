"""Micro-batches recorded from any kind of data iterator, and handed out again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from megatron_nanguard.errors import ReplayError
from megatron_nanguard.replay.data_iterators import FetchedItem, Recording, copied, vars_of
from megatron_nanguard.tensor_names import named_tensors


class Loader:
    """An iterator with a life of its own."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)
        self.epoch = 7

    def __next__(self) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([self.values.pop(0)])}

    def skip(self) -> None:
        self.values.pop(0)


def taken(iterator: Any, count: int) -> list[float]:
    return [next(iterator)["x"].item() for _ in range(count)]


def test_the_host_gets_the_very_items_of_its_iterator() -> None:
    items = [{"x": torch.zeros(1)}, {"x": torch.ones(1)}]
    recording = Recording(iter(items))
    assert [next(recording.data_iterator) is item for item in items] == [True, True]
    with pytest.raises(StopIteration):
        next(recording.data_iterator)


def test_every_replay_gets_the_items_as_they_were_fetched() -> None:
    recording = Recording(Loader(1.0, 2.0, 3.0))
    for _ in range(2):
        next(recording.data_iterator)["x"].fill_(9.0)
    for _ in range(2):
        with recording.handed_out_again():
            again = [next(recording.data_iterator) for _ in range(2)]
        assert [item["x"].item() for item in again] == [1.0, 2.0]
        again[0]["x"].fill_(5.0)
    assert taken(recording.data_iterator, 1) == [3.0], "after a replay the host's iterator goes on"


def test_a_replay_that_asks_for_more_is_an_error() -> None:
    recording = Recording(Loader(1.0))
    taken(recording.data_iterator, 1)
    with (
        pytest.raises(ReplayError, match="more than the 1 micro-batches of the step"),
        recording.handed_out_again(),
    ):
        taken(recording.data_iterator, 2)


def test_a_recording_iterator_behaves_like_the_iterator_that_it_wraps() -> None:
    recording = Recording(Loader(1.0))
    assert isinstance(recording.data_iterator, Loader)
    with pytest.raises(TypeError, match="not iterable"):
        iter(recording.data_iterator)
    assert not callable(recording.data_iterator)
    assert recording.data_iterator.epoch == 7
    assert recording.why_not() == "", "nothing was taken by reading a number"


def test_no_iterator_stays_none_and_a_list_stays_a_list() -> None:
    first, second = Loader(1.0, 2.0), Loader(3.0)
    recording = Recording([first, None, second])
    assert recording.data_iterator[1] is None
    assert (taken(recording.data_iterator[0], 2), taken(recording.data_iterator[2], 1)) == ([1.0, 2.0], [3.0])
    assert [[item["x"].item() for item in items] for items in recording.batch()] == [[1.0, 2.0], [3.0]]
    nothing = Recording(None)
    assert (nothing.data_iterator, nothing.batch(), nothing.why_not()) == (None, (), "")


def test_chunks_that_share_an_iterator_share_its_order_too() -> None:
    shared = Loader(1.0, 2.0)
    recording = Recording([shared, shared])
    assert recording.data_iterator[0] is recording.data_iterator[1]
    assert taken(recording.data_iterator[0], 1) + taken(recording.data_iterator[1], 1) == [1.0, 2.0]
    with recording.handed_out_again():
        assert taken(recording.data_iterator[1], 1) + taken(recording.data_iterator[0], 1) == [1.0, 2.0]


def test_data_taken_in_another_way_forbids_a_replay() -> None:
    recording = Recording(Loader(1.0, 2.0))
    recording.data_iterator.skip()
    assert recording.why_not() == "data was also taken through the iterator's 'skip'"


def test_items_taken_from_the_wrapped_iterator_are_not_recorded() -> None:
    inner = Loader(1.0, 2.0)
    recording = Recording(inner)
    taken(inner, 1)
    assert recording.num_fetched == 0
    taken(recording.data_iterator, 1)
    assert recording.num_fetched == 1


def test_something_that_is_no_iterator_is_left_alone() -> None:
    source = {"x": 1}
    recording = Recording(source)
    assert recording.data_iterator is source
    assert recording.why_not() == "the data iterator is a dict, which is no iterator"


def test_an_item_that_cannot_be_copied_forbids_a_replay_and_reaches_the_host() -> None:
    def rows() -> Iterator[int]:
        yield 1

    item = rows()
    recording = Recording(iter([item]))
    assert next(recording.data_iterator) is item
    assert recording.why_not().startswith("a micro-batch holds a generator, which cannot be copied")


class Uncopiable:
    """Refuses in a way of its own."""

    def __copy__(self) -> Uncopiable:
        raise OSError("the file behind it is open")


def test_whatever_copying_raises_the_host_gets_its_item() -> None:
    item = {"x": Uncopiable()}
    recording = Recording(iter([item]))
    assert next(recording.data_iterator) is item
    assert recording.why_not() == "a micro-batch cannot be copied: OSError: the file behind it is open"


def test_another_steps_batch_can_be_handed_out() -> None:
    last = Recording(Loader(1.0, 2.0))
    taken(last.data_iterator, 2)
    recording = Recording(Loader(3.0))
    with recording.handed_out_again(last.batch()):
        assert taken(recording.data_iterator, 2) == [1.0, 2.0]
    other = Recording([Loader(1.0), Loader(1.0)])
    with (
        pytest.raises(ReplayError, match="a batch of 1 iterators, the step has 2"),
        other.handed_out_again(last.batch()),
    ):
        pass


def test_micro_batches_that_changed_after_the_fetch_are_listed() -> None:
    recording = Recording(Loader(1.0, 2.0, 3.0))
    held = [next(recording.data_iterator) for _ in range(3)]
    held[0]["x"].fill_(9.0)
    held[2]["x"].fill_(9.0)
    assert recording.changed_after_fetch() == [0, 2]
    with recording.handed_out_again():
        next(recording.data_iterator)["x"].fill_(9.0)
    assert recording.changed_after_fetch() == [2], "the consumer does that to the first one itself"


def test_the_places_of_shared_and_missing_iterators_are_known() -> None:
    shared = Loader(1.0)
    assert Recording([shared, None, Loader(2.0), shared]).places() == ((0, None, 1, 0), True)
    assert Recording(Loader(1.0)).places() == ((0,), False)
    assert Recording(None).places() == ((None,), False)
    assert Recording({"x": 1}).places() == ((None,), False)


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


def test_changes_by_the_forward_step_itself_are_left_out() -> None:
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
