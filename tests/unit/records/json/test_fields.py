"""A walk through whatever a record holds."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_nanguard.records.json.fields import leaves_of, map_leaves


@dataclass(frozen=True)
class Inner:
    number: float
    words: tuple[str, ...]


@dataclass(frozen=True)
class Outer:
    inner: Inner
    by_name: dict[str, Inner]
    parts: list[int | None]


RECORD = Outer(Inner(1.5, ("a", "b")), {"k": Inner(2.5, ())}, [3, None])


def test_the_values_come_in_the_order_of_the_fields() -> None:
    assert list(leaves_of(RECORD)) == [1.5, "a", "b", 2.5, 3, None]
    assert list(leaves_of("a text")) == ["a text"]


def test_the_form_stays_and_the_values_change() -> None:
    doubled = map_leaves(RECORD, lambda value: value * 2 if isinstance(value, float) else value)

    assert doubled == Outer(Inner(3.0, ("a", "b")), {"k": Inner(5.0, ())}, [3, None])


def test_a_dataclass_can_become_something_else() -> None:
    plain = map_leaves(RECORD, str, lambda record, fields: {"is": type(record).__name__, **fields})

    assert plain["is"] == "Outer"
    assert plain["by_name"] == {"k": {"is": "Inner", "number": "2.5", "words": ()}}


def test_a_class_is_a_value_like_any_other() -> None:
    assert list(leaves_of([Inner])) == [Inner]


def test_a_tuple_of_a_class_of_its_own_becomes_a_plain_one() -> None:
    class Size(tuple[int, ...]):
        """Like torch.Size, which is no tuple to the JSON writer."""

    changed = map_leaves(Size((2, 3)), lambda value: value + 1)

    assert (type(changed), changed) == (tuple, (3, 4))
