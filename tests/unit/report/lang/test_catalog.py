from __future__ import annotations

import pytest

from megatron_nanguard.diagnosis import advice, meanings
from megatron_nanguard.report.lang.catalog import placeholders, sentences
from tests.unit.report.lang.templates import templates


def test_every_sentence_of_the_code_is_told_in_chinese_and_no_other() -> None:
    known, told = templates(), sentences("zh").keys()

    assert (sorted(known - told), sorted(told - known)) == ([], [])


def test_a_translation_has_the_values_of_its_sentence() -> None:
    different = [words for words, told in sentences("zh").items() if placeholders(words) != placeholders(told)]

    assert different == []


@pytest.mark.parametrize("texts", [advice.texts, meanings.texts])
def test_texts_that_are_data_exist_in_chinese(texts) -> None:  # type: ignore[no-untyped-def]
    assert texts("zh").keys() == texts().keys()
