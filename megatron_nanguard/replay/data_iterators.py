"""Record the micro-batches that the data iterators return, and return them again in a replay.

first pass   host iterator -> RecordingIterator -> forward step          replay   RecordingIterator -> forward step
                                   |  copies                                             ^  copies of the copies
                                   +-----------------------------------------------------+
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import wrapt
from torch import Tensor

from megatron_nanguard.errors import ReplayError
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.tensor_names import named_tensors

Batch = tuple[tuple[Any, ...], ...]
"""The items of each iterator, in the order in which they were fetched."""


class _Record:
    """What was taken through one iterator of the step, and through those that it gave out.

    Attributes:
        fetched: the items.
        ends: number of items before each time that the iterator was exhausted.
        again: what a replay returns; None in the first pass.
        consumed: what the replay has got so far.
        ends_left: of `ends`, those that the replay has not come to.
        other_uses: ways in which data may have been taken past this record.
        fault: why an item could not be copied; empty when all could.
    """

    def __init__(self) -> None:
        self.fetched: list[FetchedItem] = []
        self.ends: list[int] = []
        self.again: Sequence[Any] | None = None
        self.consumed: list[Any] = []
        self.ends_left: list[int] = []
        self.other_uses: list[str] = []
        self.fault = ""

    def first(self, source: Any) -> Any:
        """Take the next item from the iterator of the training script."""
        try:
            item = next(source)
        except StopIteration:
            self.ends.append(len(self.fetched))
            raise
        if not self.fault:
            try:
                self.fetched.append(FetchedItem(item))
            except ReplayError as error:
                self.fault = str(error)
            except Exception as error:  # a batch class may raise anything; the step goes on, without a replay
                self.fault = phrase("a micro-batch cannot be copied: {error}", error=f"{type(error).__name__}: {error}")
        return item

    def once_more(self, again: Sequence[Any]) -> Any:
        """The next item of a replay; the iterator is exhausted where it was in the first pass."""
        if self.ends_left and self.ends_left[0] == len(self.consumed):
            self.ends_left.pop(0)
            raise StopIteration
        if len(self.consumed) == len(again):
            raise ReplayError(f"the replay asks for more than the {len(again)} micro-batches of the step")
        self.consumed.append(copied(again[len(self.consumed)]))
        return self.consumed[-1]


class RecordingIterator(wrapt.ObjectProxy):  # type: ignore[type-arg]  # generic from wrapt 2 on
    """Wrap a data iterator: copy its items, pass everything else through.

    Args:
        inner: the iterator of the training script, of any type.
        record: of the iterator that gave this one out; a new one if None.
    """

    def __new__(cls, inner: Any, record: _Record | None = None) -> RecordingIterator:
        made: RecordingIterator = super().__new__(_CallableIterator if callable(inner) else cls)
        return made

    def __init__(self, inner: Any, record: _Record | None = None) -> None:
        super().__init__(inner)
        self._self_record = _Record() if record is None else record

    def __iter__(self) -> RecordingIterator:
        """What the script's own gives: itself, or another iterator, which is recorded here too.

        In a replay always this one: the script's own must not begin anew a second time.
        """
        if self._self_record.again is not None:
            return self
        given = iter(self.__wrapped__)
        return self if given is self.__wrapped__ else RecordingIterator(given, self._self_record)

    def __next__(self) -> Any:
        record = self._self_record
        return record.first(self.__wrapped__) if record.again is None else record.once_more(record.again)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if callable(found) and not name.startswith("__"):
            self._self_record.other_uses.append(name)
        return found

    # Python looks these up on the class.

    def __getitem__(self, key: Any) -> Any:
        self._self_record.other_uses.append("[]")
        return self.__wrapped__[key]

    def __contains__(self, item: Any) -> bool:
        self._self_record.other_uses.append("in")
        return item in self.__wrapped__

    def __reversed__(self) -> Any:
        self._self_record.other_uses.append("reversed")
        return reversed(self.__wrapped__)

    def __copy__(self) -> Any:
        self._self_record.other_uses.append("copy")
        return copy.copy(self.__wrapped__)

    def __deepcopy__(self, memo: Any) -> Any:
        self._self_record.other_uses.append("deepcopy")
        return copy.deepcopy(self.__wrapped__, memo)

    def __reduce__(self) -> Any:
        return self.__wrapped__.__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled like the script's own, whose state may go into a checkpoint."""
        return self.__wrapped__.__reduce_ex__(protocol)


class _CallableIterator(RecordingIterator):
    """For an iterator that can be called; others must not look as if they could."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._self_record.other_uses.append("()")
        return self.__wrapped__(*args, **kwargs)


class Recording:
    """The micro-batches of one step.

    Args:
        data_iterator: the schedule's argument: an iterator, a list of them under virtual pipelining, or None.
    Attributes:
        data_iterator: the same with every iterator wrapped in a `RecordingIterator`.
    """

    def __init__(self, data_iterator: Any) -> None:
        self._iterators: dict[int, RecordingIterator] = {}
        self._unknown = ""
        self._replayed = False
        self._given = data_iterator
        self.data_iterator = self._record(data_iterator)

    def _record(self, data_iterator: Any) -> Any:
        if data_iterator is None:
            return None
        if isinstance(data_iterator, list | tuple):
            return type(data_iterator)(self._record(one) for one in data_iterator)
        if not hasattr(data_iterator, "__next__"):
            self._unknown = phrase(
                "the data iterator is a {kind}, which is no iterator", kind=type(data_iterator).__name__
            )
            return data_iterator
        # Under virtual pipelining chunks may share one iterator.
        return self._iterators.setdefault(id(data_iterator), RecordingIterator(data_iterator))

    def places(self) -> tuple[tuple[int | None, ...], bool]:
        """The number of the iterator for each entry of the schedule's argument, and whether the argument was a list."""
        numbers = {key: number for number, key in enumerate(self._iterators)}
        is_list = isinstance(self._given, list | tuple)
        return tuple(numbers.get(id(one)) for one in (self._given if is_list else [self._given])), is_list

    def why_not(self) -> str:
        """Why the data cannot be returned again; empty when it can."""
        for iterator in self._iterators.values():
            record = iterator._self_record
            if record.fault:
                return record.fault
            if record.other_uses:
                use = repr(record.other_uses[0])
                return phrase("data was also taken through the iterator's {use}", use=use)
        return self._unknown

    @property
    def num_fetched(self) -> int:
        """Number of micro-batches that were fetched."""
        return sum(len(each._self_record.fetched) for each in self._iterators.values())

    def batch(self) -> Batch:
        """The copies of the items, by iterator."""
        return tuple(tuple(one.content for one in each._self_record.fetched) for each in self._iterators.values())

    def changed_after_fetch(self) -> list[int]:
        """Numbers of the micro-batches whose tensors, where they still exist, changed after the fetch.

        After a replay of this batch, changes that the forward step itself makes to them are left out.

        Sync: host reads; only on an incident.
        """
        changed: set[int] = set()
        for iterator in self._iterators.values():
            consumed = iterator._self_record.consumed if self._replayed else []
            for number, item in enumerate(iterator._self_record.fetched):
                if item.changed(consumed[number] if number < len(consumed) else None):
                    changed.add(number)
        return sorted(changed)

    @contextmanager
    def handed_out_again(self, batch: Batch | None = None) -> Iterator[None]:
        """Within the context the iterators return copies of what they returned before, or of another step's batch.

        Raises:
            ReplayError: that batch has another number of iterators.
        """
        chosen = self.batch() if batch is None else batch
        if len(chosen) != len(self._iterators):
            raise ReplayError(f"a batch of {len(chosen)} iterators, the step has {len(self._iterators)}")
        for iterator, items in zip(self._iterators.values(), chosen, strict=True):
            record = iterator._self_record
            record.again, record.consumed, record.ends_left = items, [], list(record.ends)
        try:
            yield
        finally:
            self._replayed = batch is None
            for iterator in self._iterators.values():
                iterator._self_record.again = None


def copied(item: Any) -> Any:
    """Copy containers and tensors deeply and other objects shallowly.

    A forward step may pop from the dict of a micro-batch, put device tensors into it, and change tensors in place.

    Raises:
        ReplayError: something in it cannot be copied.
    """
    if isinstance(item, Tensor):
        return item.detach().clone()
    if type(item) is dict:
        return {key: copied(value) for key, value in item.items()}
    if type(item) in (list, tuple):
        return type(item)(copied(value) for value in item)
    try:
        twin = copy.copy(item)
    except TypeError as error:
        raise ReplayError(f"a micro-batch holds a {type(item).__name__}, which cannot be copied ({error})") from None
    if vars_of(item):
        vars(twin).update({name: copied(value) for name, value in vars_of(item).items()})
    return twin


def vars_of(item: object) -> dict[str, Any]:
    """Attributes of an object such as a batch class; none for functions and for objects without a `__dict__`."""
    return {} if callable(item) else getattr(item, "__dict__", {})


class FetchedItem:
    """A copy of one item, made when it was fetched.

    Args:
        item: what the forward step got. Only weak references to its tensors are kept.
    Attributes:
        content: the copy.
    """

    def __init__(self, item: object) -> None:
        self.content = copied(item)
        self._originals = [weakref.ref(tensor) for _, tensor in named_tensors(item, vars_of)]

    def changed(self, consumed: object = None) -> list[str]:
        """Names of the tensors that still exist and differ from the copy by now.

        Args:
            consumed: a copy that a replay has used. A tensor that equals its tensor there was changed by the forward
                step itself and is left out.
        Sync: host reads, one per tensor on a device.
        """
        after = dict(named_tensors(consumed, vars_of))
        changed = []
        for (name, tensor), original in zip(named_tensors(self.content, vars_of), self._originals, strict=True):
            now, used = original(), after.get(name)
            if now is not None and not _same(now, tensor) and (used is None or not _same(now, used)):
                changed.append(name)
        return changed


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same bit for bit, so that a NaN equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    bits = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*bits)
