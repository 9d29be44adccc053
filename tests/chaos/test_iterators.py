"""A data iterator under guard behaves as the script's own does, whatever the script does with it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from megatron.core.rerun_state_machine import RerunDataIterator

from megatron_nanguard.replay.data_iterators import Recording

pytestmark = pytest.mark.timeout(30)


class Anew:
    """Begins anew with every `for`, can be indexed, called, copied and saved."""

    def __init__(self) -> None:
        self.taken = 0
        self.begun = 0

    def __iter__(self) -> Anew:
        self.begun += 1
        self.taken = 0
        return self

    def __next__(self) -> torch.Tensor:
        self.taken += 1
        if self.taken > 3:
            raise StopIteration
        return torch.tensor([float(self.taken)])

    def __getitem__(self, index: int) -> int:
        return 100 + index

    def __contains__(self, item: object) -> bool:
        return item == 5

    def __call__(self) -> int:
        return 7


class Giving:
    """Gives another iterator out with every `for`."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.tensor([4.0]), torch.tensor([5.0])])

    def __next__(self) -> torch.Tensor:
        return torch.tensor([6.0])


def first_of_three_rounds(iterator: Any) -> list[float]:
    found = []
    for _ in range(3):
        for item in iterator:
            found.append(item.item())
            break
    return found


def to_the_end_and_once_more(iterator: Any) -> list[float]:
    found = [item.item() for item in iterator]
    try:
        next(iterator)
    except StopIteration:
        found.append(-1.0)
    return [*found, *(item.item() for item in iterator)]


def mixed(iterator: Any) -> list[float]:
    given = iter(iterator)
    return [next(iterator).item(), next(given).item(), next(iterator).item(), next(given).item()]


USES: list[tuple[type[Any], Callable[[Any], list[float]]]] = [
    (Anew, first_of_three_rounds),
    (Anew, to_the_end_and_once_more),
    (Giving, first_of_three_rounds),
    (Giving, mixed),
]


@pytest.mark.parametrize(("kind", "use"), USES)
def test_the_script_gets_what_its_own_iterator_gives_and_a_replay_gives_it_again(
    kind: type[Any], use: Callable[[Any], list[float]]
) -> None:
    stock, inner = kind(), kind()
    recording = Recording(inner)

    found = use(recording.data_iterator)

    assert found == use(stock)
    assert vars(inner) == vars(stock), "the script's own is in the same state"
    assert recording.why_not() == ""
    for _ in range(2):
        with recording.handed_out_again():
            assert use(recording.data_iterator) == found
    assert vars(inner) == vars(stock), "a replay does not touch it"


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_those_of_the_scripts_own(twin: Callable[[Any], Any]) -> None:
    recording = Recording(Anew())
    next(recording.data_iterator)
    made = twin(recording.data_iterator)
    assert type(made) is Anew
    assert made.taken == 1
    assert next(made).item() == 2.0
    assert recording.data_iterator.taken == 1


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy])
def test_what_cannot_be_copied_stays_so(twin: Callable[[Any], Any]) -> None:
    generator = (torch.ones(1) for _ in range(2))
    with pytest.raises(TypeError) as stock:
        twin(generator)
    with pytest.raises(TypeError) as guarded:
        twin(Recording(generator).data_iterator)
    assert str(guarded.value) == str(stock.value)


@pytest.mark.parametrize(
    ("use", "expected", "name"),
    [
        (lambda one: one(), 7, "'()'"),
        (lambda one: one[3], 103, "'[]'"),
        (lambda one: 5 in one, True, "'in'"),
        (lambda one: copy.copy(one).taken, 0, "'copy'"),
    ],
)
def test_data_that_may_have_been_taken_another_way_is_noticed(
    use: Callable[[Any], Any], expected: Any, name: str
) -> None:
    assert use(Anew()) == expected
    recording = Recording(Anew())
    assert use(recording.data_iterator) == expected
    assert recording.why_not() == f"data was also taken through the iterator's {name}"


def test_only_what_can_be_called_looks_so() -> None:
    assert callable(Recording(Anew()).data_iterator)
    assert not callable(Recording(Giving()).data_iterator)
    assert isinstance(Recording(Anew()).data_iterator, Anew)


def test_megatrons_own_rerun_iterator_rewinds_beneath_it() -> None:
    inner = RerunDataIterator(iter([torch.tensor([1.0]), torch.tensor([2.0])]))
    inner.saved_microbatches = [torch.tensor([1.0]), torch.tensor([2.0])]
    inner.rewind()
    recording = Recording(inner)
    assert [next(recording.data_iterator).item() for _ in range(2)] == [1.0, 2.0]
    with recording.handed_out_again():
        assert [next(recording.data_iterator).item() for _ in range(2)] == [1.0, 2.0]
    assert inner.replay_pos == 2, "a replay of ours does not move it"
    assert recording.why_not() == ""
