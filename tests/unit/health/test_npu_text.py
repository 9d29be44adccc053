"""Output of several versions of npu-smi."""

from __future__ import annotations

import pytest

from megatron_nanguard.health.npu_text import (
    Chip,
    State,
    parse_fields,
    parse_mapping,
    read_ecc,
    read_hccs,
    read_health,
    read_states,
)
from tests.unit.health import samples


@pytest.mark.parametrize(
    ("text", "chips"),
    [
        (samples.MAP_910B, {"0": Chip("2", "0"), "1": Chip("5", "0")}),
        (samples.MAP_A3, {"0": Chip("0", "0"), "1": Chip("0", "1"), "2": Chip("1", "0")}),
        (samples.MAP_ONE_CHIP, {"0": Chip("0", ""), "1": Chip("1", "")}),
        ("dcmi module initialize failed. ret is -8005\n", {}),
        ("", {}),
    ],
)
def test_card_and_chip_by_logic_id(text: str, chips: dict[str, Chip]) -> None:
    assert parse_mapping(text) == chips


def test_memory_errors_when_the_chip_number_ends_the_block() -> None:
    counters, states = read_ecc(parse_fields(samples.ECC_910, "0"))
    assert counters == {
        "DDR Single Bit Error Count": 0,
        "DDR Double Bit Error Count": 0,
        "HBM Single Bit Error Count": 3,
        "HBM Double Bit Error Count": 0,
        "HBM Single Bit Aggregate Total Err Cnt": 14,
        "HBM Double Bit Aggregate Total Err Cnt": 0,
        "HBM Single Bit Isolated Pages Count": 0,
        "HBM Double Bit Isolated Pages Count": 0,
    }
    assert states == {}


@pytest.mark.parametrize(("chip", "counts"), [("0", (1, 0)), ("1", (0, 2))])
def test_of_two_chips_the_one_that_was_asked_for_is_read(chip: str, counts: tuple[int, int]) -> None:
    counters, _ = read_ecc(parse_fields(samples.ECC_TWO_CHIPS, chip))
    assert (counters["HBM Single Bit Error Count"], counters["HBM Double Bit Error Count"]) == counts


def test_a_card_without_chip_numbers_has_one_chip() -> None:
    counters, _ = read_ecc(parse_fields(samples.ECC_910B.format(double=2), "0"))
    assert counters["HBM Double Bit Error Count"] == 2
    assert read_ecc(parse_fields(samples.ECC_310))[0] == {"Single-bit Error Count": 4, "Double-bit Error Count": 1}


@pytest.mark.parametrize(
    ("text", "states"),
    [
        (samples.HEALTH_OK, {"health": "OK", "error codes": "none"}),
        (samples.HEALTH_ALARM, {"health": "Alarm", "error codes": "80E01801 81078603"}),
        (samples.HEALTH_ALL_CHIPS, {"health": "Warning"}),
        ("This device does not exist.\n", {}),
    ],
)
def test_health_and_error_codes_of_a_card(text: str, states: dict[str, str]) -> None:
    assert read_health(parse_fields(text, "0")) == ({}, states)


def test_errors_of_the_links_are_summed() -> None:
    values = read_hccs(parse_fields(samples.HCCS.format(health="NOK", errors=5), "0"))
    assert values == ({"hccs error count": 5, "hccs retry count": 3}, {"hccs health": "NOK"})
    assert read_hccs(parse_fields(samples.NO_HCCS, "0")) == ({}, {})


def test_a_state_is_found_under_any_of_its_names_or_left_out() -> None:
    read = read_states(
        State("temperature", ("NPU Temperature (C)", "Temperature (C)"), " C"), State("driver", ("Product Name",))
    )
    assert read(parse_fields(samples.TEMPERATURE, "0")) == ({}, {"temperature": "49 C"})
    assert read({"Temperature (C)": "31", "Product Name": "NA"}) == ({}, {"temperature": "31 C"})
