"""Devices of a run, and those of its accused ranks."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.postmortem.merging.incident import merge
from megatron_nanguard.records.device import RankDevice
from megatron_nanguard.records.health import DeviceHealth
from megatron_nanguard.records.incident import DeviceCount
from megatron_nanguard.records.postmortem import Postmortem, RankSets
from tests.unit.factories import CPU, postmortem

CARD = replace(CPU, backend="cuda", index=3, name="H200")
SETS = RankSets((5,), (1,), (0,))


def on_a_card(rank: int, sets: RankSets, number: int = 3) -> Postmortem:
    return postmortem(rank, host=f"node{rank // 4}", device=replace(CARD, index=number), ranks=sets)


def test_the_devices_of_ranks_that_were_bad_before_are_named() -> None:
    merged = merge([on_a_card(0, SETS), on_a_card(1, SETS), on_a_card(5, SETS)], exchanged=None, policy=None)

    assert merged.devices == (DeviceCount("cuda", "H200", "not_applicable", 3),)
    assert merged.num_hosts == 2
    assert merged.accused_devices == (RankDevice(5, "node1", "cuda:3"),)


def test_where_no_rank_was_bad_before_those_bad_after_it_are_named_as_the_vendor_does() -> None:
    sets = RankSets((), (1,), (0,))
    health = DeviceHealth(rank=1, host="node0", device="cuda:3, GPU-1f", since="", taken="")
    named = replace(on_a_card(1, sets), health=health)

    merged = merge([on_a_card(0, sets), named], exchanged=None, policy=None)

    assert merged.accused_devices == (RankDevice(1, "node0", "cuda:3, GPU-1f"),)


def test_a_host_with_one_device_needs_no_number() -> None:
    merged = merge([postmortem(5, ranks=SETS)], exchanged=None, policy=None)

    assert merged.accused_devices == (RankDevice(5, "node1", ""),)
