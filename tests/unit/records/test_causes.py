"""The causes: codes as they stand in files, words and meanings for readers."""

from __future__ import annotations

import pytest

from megatron_nanguard.records.causes import Cause, Family, cause_words, family_of, known_cause


def test_the_codes_are_those_of_the_files() -> None:
    assert [str(cause) for cause in Cause] == [
        "state_corruption",
        "data",
        "loss_or_mask",
        "uninitialised_or_race",
        "communication",
        "operator",
        "framework",
        "numerics",
        "loss_scaler",
        "norm_overflow",
        "hardware_transient",
        "hardware_persistent",
        "checker_artifact",
        "undecided",
    ]


@pytest.mark.parametrize("cause", Cause)
def test_a_cause_reads_as_its_code_and_has_words_and_one_sentence(cause: Cause) -> None:
    assert f"{cause}" == str(cause) == cause.value
    assert cause.words and cause.words != cause.meaning
    assert cause.meaning.endswith(".") and "\n" not in cause.meaning


def test_a_code_is_looked_up_by_its_text() -> None:
    assert known_cause("hardware_transient") is Cause.HARDWARE_TRANSIENT
    assert cause_words("hardware_transient") == "passing hardware fault"
    assert family_of("hardware_transient") is Family.HARDWARE


def test_a_code_of_another_version_is_shown_as_it_is() -> None:
    assert known_cause("cosmic_ray") is None
    assert cause_words("cosmic_ray") == "cosmic ray"
    assert family_of("cosmic_ray") is Family.OPEN
