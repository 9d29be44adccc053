"""Ascend cards, through a stand-in for torch_npu."""

from __future__ import annotations

import pytest
import torch

from megatron_nanguard.device import SATURATION_WARNING, NpuDevice
from megatron_nanguard.device.npu import SWITCHES
from megatron_nanguard.device.protocol import Identity
from megatron_nanguard.records.machine.device import DeviceFacts
from tests.unit.device.stand_in_npu import StandInNpu, put_in_place


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> StandInNpu:
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    return put_in_place(monkeypatch)


def test_the_facts_of_the_current_card(npu: StandInNpu) -> None:
    assert NpuDevice().facts() == DeviceFacts(
        backend="npu",
        index=1,
        name="Ascend910B2",
        overflow_mode="inf_nan",
        memory_total_bytes=64 << 30,
        details={"torch_npu": "2.6.0", "cann": "8.1.RC1"},
    )


def test_the_facts_of_another_card(npu: StandInNpu) -> None:
    facts = NpuDevice().facts(index=0)
    assert (facts.index, facts.name, facts.memory_total_bytes) == (0, "Ascend910B1", 32 << 30)


def test_the_driver_decides_about_the_mode_and_not_the_environment(
    npu: StandInNpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INF_NAN_MODE_ENABLE", "1")
    npu.utils.is_support_inf_nan = lambda: False
    facts = NpuDevice().facts()
    assert facts.overflow_mode == "saturation"
    assert facts.details["INF_NAN_MODE_ENABLE"] == "1"


def test_switches_that_are_set_are_recorded_and_no_other_variable(
    npu: StandInNpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("INF_NAN_MODE_FORCE_DISABLE", "1")
    monkeypatch.setenv("ASCEND_HOME_PATH", "/opt/ascend")
    details = NpuDevice().facts().details
    assert set(details) == {"torch_npu", "cann", "ASCEND_LAUNCH_BLOCKING", "INF_NAN_MODE_FORCE_DISABLE"}


def test_a_torch_npu_that_does_not_know_the_cann_version(npu: StandInNpu) -> None:
    del npu.utils.get_cann_version
    assert NpuDevice().facts().details == {"torch_npu": "2.6.0"}


def test_rng_state_and_synchronize_reach_the_card(npu: StandInNpu) -> None:
    device = NpuDevice()
    assert device.rng_state().tolist() == [7, 0, 9]
    device.set_rng_state(torch.tensor([1], dtype=torch.uint8))
    assert device.rng_state().tolist() == [1]
    device.synchronize()
    assert npu.waits == 1


def test_the_card_that_is_taken_is_the_current_one(npu: StandInNpu) -> None:
    device = NpuDevice()
    assert (device.take(0), device.facts().name) == ("npu:0", "Ascend910B1")


def test_free_memory_is_the_first_of_the_cards_two_numbers(npu: StandInNpu) -> None:
    assert NpuDevice().free_bytes() == 5 << 30


def test_the_warning_says_what_is_lost_and_what_to_do() -> None:
    for word in ("saturation mode", "blind", "INF_NAN_MODE_FORCE_DISABLE", "INF_NAN_MODE_ENABLE=1"):
        assert word in SATURATION_WARNING


@pytest.mark.parametrize(
    ("visible", "index", "logic_id"),
    [("", None, "1"), ("", 0, "0"), ("4,6", 0, "4"), ("4,6", None, "6"), ("4, 6", 0, "4"), ("3", 0, "3")],
)
def test_npu_smi_knows_the_card_by_its_logic_id(
    npu: StandInNpu, monkeypatch: pytest.MonkeyPatch, visible: str, index: int | None, logic_id: str
) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    assert NpuDevice().identity(index) == Identity(logic_id, "")
