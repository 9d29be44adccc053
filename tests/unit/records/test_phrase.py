"""Sentences that know how they were put together."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import orjson
import pytest

from megatron_nanguard.records.phrase import (
    ALONGSIDE,
    LISTED,
    Phrase,
    Phrasing,
    joined,
    name_ranks,
    opening,
    phrase,
    phrases_of,
    rank_list,
)

NAMED = phrase("log in {module}", module="mlp")
TOLD = phrase("values from {lowest:g} up: {origin}", lowest=0.50, origin=NAMED)


@dataclass(frozen=True)
class Record:
    told: tuple[str, ...]
    plain: str


def test_a_phrase_is_its_english_text() -> None:
    assert TOLD == "values from 0.5 up: log in mlp"
    assert orjson.loads(orjson.dumps([TOLD])) == ["values from 0.5 up: log in mlp"]


def test_numbers_are_kept_as_they_read_and_phrases_as_phrases() -> None:
    assert TOLD.values == {"lowest": "0.5", "origin": "log in mlp"}
    assert TOLD.values["origin"] is NAMED


def test_a_template_is_formatted_later_and_again() -> None:
    template = phrase("rank {rank}")

    assert [template.format(rank=rank) for rank in (4, 5)] == ["rank 4", "rank 5"]
    assert template == "rank {rank}"


def test_copies_know_it_as_well() -> None:
    for copied in (copy.deepcopy(TOLD), pickle.loads(pickle.dumps(TOLD))):
        assert (copied, copied.template, copied.values) == (TOLD, TOLD.template, TOLD.values)


def test_a_row_leaves_out_what_is_empty() -> None:
    assert joined(LISTED, ("a", "", "b")) == "a, b"
    assert joined(ALONGSIDE, iter("abc")) == "a; b; c"
    assert joined(LISTED, ()) == ""


def test_a_sentence_begins_with_a_capital() -> None:
    assert opening(NAMED) == "Log in mlp"
    assert opening(NAMED).values == {"words": "log in mlp"}


def test_a_record_gives_every_phrase_and_those_inside() -> None:
    assert phrases_of(Record((TOLD,), "plain")) == {
        "values from 0.5 up: log in mlp": Phrasing(
            "values from {lowest:g} up: {origin}", {"lowest": "0.5", "origin": "log in mlp"}
        ),
        "log in mlp": Phrasing("log in {module}", {"module": "mlp"}),
    }
    assert phrases_of(Record((), str(TOLD))) == {}


def test_a_text_without_values_is_its_own_template() -> None:
    assert (Phrase("finite").template, Phrase("finite").values) == ("finite", {})


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "no rank"),
        ((7,), "rank 7"),
        ((4, 5), "ranks 4, 5"),
        (range(17), "17 ranks (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ...)"),
    ],
)
def test_a_sentence_spells_a_set_out_or_its_beginning(ranks: tuple[int, ...], text: str) -> None:
    assert name_ranks(ranks) == text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "none"),
        ((7,), "7"),
        ((0, 1, 4, 5), "0, 1, 4, 5"),
        ((0, 1, 2, 5, 8, 9, 10), "0-2, 5, 8-10"),
        (tuple(range(16384)), "0-16383"),
        (tuple(range(0, 34, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, ... (17 ranks)"),
    ],
)
def test_a_table_shows_ranks_in_runs(ranks: tuple[int, ...], text: str) -> None:
    assert rank_list(ranks) == text


def test_a_list_that_holds_only_the_first_ranks_gives_the_number_of_all() -> None:
    assert rank_list((0, 1, 2), 100) == "0-2, ... (100 ranks)"
