from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.parameters.file import map_file
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.records.coordinates import Coordinates
from tests.unit.factories import SIZES, place
from tests.unit.megatron_api.chunks import Chunk

PLAIN = ParameterMap([Chunk()], SIZES)
SHARDED = ParameterMap([Chunk(distributed=True)], SIZES)
EXPERT_SIZES = replace(SIZES, tp=1, pp=1, dp=8, ep=2, expert_tp=1, expert_dp=4)


def test_the_first_replica_writes_its_map_in_full() -> None:
    name, file = map_file(PLAIN, place(5), SIZES)
    assert name == "param_map_tp1pp1dp0.json"
    assert (file.same_as, file.entries, file.coordinates, file.sizes) == (None, PLAIN.entries, place(5), SIZES)


def test_another_replica_points_to_it() -> None:
    name, file = map_file(PLAIN, place(7), SIZES)
    assert (name, file.same_as, file.entries) == ("param_map_tp1pp1dp1.json", "param_map_tp1pp1dp0.json", ())


def test_shards_differ_so_every_replica_writes_its_own() -> None:
    name, file = map_file(SHARDED, place(7), SIZES)
    assert (name, file.same_as, file.entries) == ("param_map_tp1pp1dp1.json", None, SHARDED.entries)


def test_context_parallel_ranks_hold_the_same() -> None:
    name, file = map_file(PLAIN, replace(place(3), cp=1), replace(SIZES, cp=2))
    assert (name, file.same_as) == ("param_map_tp1pp0dp1cp1.json", "param_map_tp1pp0dp0cp0.json")


def test_replicas_of_the_same_experts_share_a_map() -> None:
    # EP2 inside DP8: the even ranks hold the first half of the experts, the odd ones the second.
    at = Coordinates(5, tp=0, cp=0, ep=1, dp=5, pp=0, expert_tp=0, expert_dp=2)
    name, file = map_file(PLAIN, at, EXPERT_SIZES)
    assert (name, file.same_as) == ("param_map_tp0pp0dp5ep1.json", "param_map_tp0pp0dp1ep1.json")


def test_where_releases_place_experts_differently_every_rank_writes_its_own() -> None:
    at = Coordinates(5, tp=0, cp=1, ep=1, dp=2, pp=0, expert_tp=0, expert_dp=2)
    _, file = map_file(PLAIN, at, replace(EXPERT_SIZES, cp=2, dp=4))
    assert file.same_as is None
