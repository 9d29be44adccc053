"""Devices of a run, those of its failing ranks, and the hardware readings that are kept."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.postmortem.merging.hardware import LISTED_PER_REASON, HealthMerger
from megatron_nanguard.postmortem.merging.incident import merge
from megatron_nanguard.records.incident import DeviceCount
from megatron_nanguard.records.machine.device import RankDevice
from megatron_nanguard.records.machine.health import DeviceHealth
from megatron_nanguard.records.postmortem import Postmortem, RankSets
from megatron_nanguard.records.suspect_call import Arbitration
from tests.unit.factories import CPU, demo_postmortem, place, postmortem
from tests.unit.hardware import LOST_DATA, NOTE, SLOW, health

CARD = replace(CPU, backend="cuda", index=3, name="H200")
SETS = RankSets((5,), (1,), (0,))


def on_a_card(rank: int, sets: RankSets, number: int = 3) -> Postmortem:
    return postmortem(rank, host=f"node{rank // 4}", device=replace(CARD, index=number), ranks=sets)


def test_the_devices_of_ranks_that_were_bad_before_are_named() -> None:
    merged = merge([on_a_card(0, SETS), on_a_card(1, SETS), on_a_card(5, SETS)], exchanged=None, policy=None)

    assert merged.devices == (DeviceCount("cuda", "H200", "not_applicable", 3),)
    assert merged.num_hosts == 2
    assert merged.accused_devices == (RankDevice(5, "node1", "cuda:3"),)


def test_if_no_rank_was_bad_before_devices_of_ranks_bad_after_get_their_vendor_name() -> None:
    sets = RankSets((), (1,), (0,))
    health = DeviceHealth(rank=1, host="node0", device="cuda:3, GPU-1f", since="", taken="")
    named = replace(on_a_card(1, sets), health=health)

    merged = merge([on_a_card(0, sets), named], exchanged=None, policy=None)

    assert merged.accused_devices == (RankDevice(1, "node0", "cuda:3, GPU-1f"),)


def test_a_host_with_one_device_needs_no_number() -> None:
    merged = merge([postmortem(5, ranks=SETS)], exchanged=None, policy=None)

    assert merged.accused_devices == (RankDevice(5, "node1", ""),)


CALL = Arbitration(rank=5, operator="aten.log.default", module="decoder.layers.3.mlp")


def merged_of(*ranks: tuple[DeviceHealth | None, str, bool]) -> list[int]:
    merger = HealthMerger()
    for device, set_name, was_tried in ranks:
        merger.add(postmortem(0, health=device, arbitrations=(CALL,) if was_tried else ()), set_name)
    return [one.rank for one in merger.merged()]


def test_failing_ranks_changes_and_two_healthy_ranks_are_kept() -> None:
    ranks = [(health(rank), "clean", False) for rank in range(10, 16)]
    ranks += [(health(3), "bad_before", False), (health(9, SLOW), "clean", False), (health(8), "bad_after_only", True)]
    assert merged_of(*ranks) == [3, 8, 9, 10, 11]


def test_a_device_that_lost_data_is_kept_however_many_others_have_reports() -> None:
    ranks = [(health(rank, SLOW), "clean", False) for rank in range(200)]
    assert merged_of(*ranks, (health(500, LOST_DATA), "clean", False)) == [*range(LISTED_PER_REASON), 500]


def test_many_ranks_with_notes_do_not_displace_a_rank_with_news() -> None:
    ranks = [(health(rank, NOTE), "clean", False) for rank in range(200)]
    assert merged_of(*ranks, (health(500, SLOW), "clean", False)) == [*range(LISTED_PER_REASON), 500]


def test_a_rank_with_a_suspect_call_is_kept_however_many_were_bad() -> None:
    ranks = [(health(rank), "bad_before", False) for rank in range(200)]
    assert merged_of(*ranks, (health(500), "bad_before", True)) == [*range(LISTED_PER_REASON), 500]


def test_a_device_without_readings_and_problems_is_left_out() -> None:
    assert merged_of((None, "bad_before", False), (health(1, readings=()), "bad_before", False)) == []
    assert merged_of((health(1, readings=(), problems=("NVML: no answer after 10 s",)), "bad_before", False)) == [1]


def test_the_incident_has_the_health_of_failing_and_healthy_ranks() -> None:
    files = [replace(demo_postmortem(rank), health=health(rank)) for rank in (4, 5)]
    clean = postmortem(7, coordinates=place(7), health=health(7))
    found = merge([*files, clean], exchanged=None, policy=None)
    assert [one.rank for one in found.health] == [4, 5, 7]
