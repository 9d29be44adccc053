"""Single texts in another language, and the completeness of the translations."""

from __future__ import annotations

import pytest

from megatron_nanguard.diagnosis.texts import advice_texts
from megatron_nanguard.records.phrase import Phrasing, phrase
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.lang import MAX_PHRASES, Translator, placeholders, sentences
from tests.unit.report.lang.templates import templates

RANK = Phrasing("rank {rank}", {"rank": "5"})
CALL = Phrasing("{operator} on rank {rank}", {"operator": "log", "rank": "5"})


def test_a_recorded_text_is_translated_with_its_values() -> None:
    assert Translator("zh", {"log on rank 5": CALL}).translate("log on rank 5") == "rank 5 上的 log"


def test_a_value_that_is_a_phrase_is_translated_too() -> None:
    told = Phrasing("{call} is finite on another device", {"call": "log on rank 5"})

    assert Translator("zh", {"x": told, "log on rank 5": CALL}).translate("x") == "rank 5 上的 log 在另一设备上为有限值"


def test_a_phrase_of_the_code_is_translated_without_a_recorded_template() -> None:
    assert Translator("zh", {}).translate(phrase("Verdict")) == "结论"


@pytest.mark.parametrize(
    "recorded",
    [
        Phrasing("a sentence of another version", {}),
        Phrasing("rank {rank}", {}),
        Phrasing("{operator} on rank {rank}", {"operator": "log"}),
    ],
)
def test_a_text_that_cannot_be_translated_stays_as_it_is(recorded: Phrasing) -> None:
    assert Translator("zh", {"text": recorded}).translate("text") == "text"


def test_a_plain_string_equal_to_a_phrase_is_not_translated() -> None:
    block = Block(phrase("Notes"), rows=((phrase("module"), "module"),))

    assert Translator("zh", {}).translated(block) == Block("备注", rows=(("模块", "module"),))


def test_english_blocks_are_returned_unchanged() -> None:
    block = Block(phrase("Notes"))

    assert Translator("en", {"Notes": RANK}).translated(block) is block


def test_translation_of_a_phrase_that_contains_itself_ends() -> None:
    twice = Phrasing("{first}; {then}", {"first": "x", "then": "x"})

    told = Translator("zh", {"x": twice}).translate("x")

    assert told.count("；") == MAX_PHRASES


def test_no_blanks_are_left_beside_full_width_punctuation() -> None:
    who = Phrasing("rank {rank} ({places})", {"rank": "5", "places": "TP 1"})
    told = Phrasing("{ranks} cannot run the step again: {why}", {"ranks": "who", "why": "FSDP"})

    assert Translator("zh", {"who": who, "x": told}).translate("x") == "rank 5（TP 1）无法重放这一步：FSDP"


def test_the_chinese_has_every_phrase_of_the_code_and_no_other() -> None:
    known, told = templates(), sentences("zh").keys()

    assert (sorted(known - told), sorted(told - known)) == ([], [])


def test_a_translation_has_the_values_of_its_sentence() -> None:
    different = [words for words, told in sentences("zh").items() if placeholders(words) != placeholders(told)]

    assert different == []


def test_advice_exists_in_chinese() -> None:
    assert advice_texts("zh").keys() == advice_texts().keys()
