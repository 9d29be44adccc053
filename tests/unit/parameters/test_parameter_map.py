from __future__ import annotations

from dataclasses import replace

import pytest
from torch import zeros
from torch.nn import Linear, Parameter

from megatron_nanguard.megatron_api.pieces import Piece, reduced_pieces
from megatron_nanguard.parameters.parameter_map import ParameterMap, index_in, map_file
from megatron_nanguard.records.coordinates import Coordinates
from megatron_nanguard.records.run.parameters import ParameterEntry
from tests.unit.factories import SIZES, place
from tests.unit.megatron_api.chunks import Chunk

ONE_TP_RANK = replace(SIZES, tp=1)


def entry(parameters: ParameterMap, name: str) -> ParameterEntry:
    return next(entry for entry in parameters.entries if entry.name == name)


def test_an_entry_in_full() -> None:
    chunk = Chunk(rank=1, size=2, distributed=True)
    chunk.a.tensor_model_parallel = True
    chunk.a.partition_dim = 1
    chunk.a.shared = True
    chunk.a.shared_embedding = True
    assert entry(ParameterMap([chunk], SIZES), "a") == ParameterEntry(
        id=0,
        name="a",
        local_name="a",
        shape=(2, 3),
        dtype="float32",
        partition_dim=1,
        shared=True,
        tied=True,
        expert=False,
        chunk=0,
        buffer=0,
        bucket=0,
        start=4,
        end=10,
        shards=((2, 6),),
    )


def test_nothing_is_split_over_one_rank() -> None:
    chunk = Chunk()
    chunk.a.tensor_model_parallel = True
    chunk.a.partition_dim = 0
    assert entry(ParameterMap([chunk], ONE_TP_RANK), "a").partition_dim is None
    assert entry(ParameterMap([chunk], SIZES), "a").partition_dim == 0
    assert entry(ParameterMap([chunk], SIZES), "b").partition_dim is None


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0, {"a": ((0, 2),), "b": ((0, 3),), "c": ((0, 2),)}), (1, {"a": ((2, 6),), "b": (), "c": ((2, 4),)})],
)
def test_shards_of_the_distributed_optimizer(rank: int, expected: dict[str, tuple[tuple[int, int], ...]]) -> None:
    parameters = ParameterMap([Chunk(rank, size=2, distributed=True)], SIZES)
    assert {entry.name: entry.shards for entry in parameters.entries} == expected
    assert parameters.is_sharded


def test_plain_ddp_owns_whole_parameters() -> None:
    parameters = ParameterMap([Chunk(rank=1, size=2)], SIZES)
    assert entry(parameters, "c").shards == ((0, 4),)
    assert not parameters.is_sharded


def test_a_chunk_without_buffers_and_a_frozen_parameter() -> None:
    model = Linear(2, 2)
    model.bias.requires_grad_(False)
    weight, bias = ParameterMap([model], SIZES).entries
    assert (weight.buffer, weight.bucket, weight.start, weight.end, weight.shards) == (
        None,
        None,
        None,
        None,
        ((0, 4),),
    )
    assert bias.shards == ()


def test_parameters_are_found_by_object() -> None:
    chunks = [Chunk(), Chunk()]
    parameters = ParameterMap(chunks, SIZES)
    found = parameters.entry(chunks[1].c)
    assert (found.id, found.name, found.chunk) == (5, "chunk1:c", 1)
    assert parameters.parameter(found) is chunks[1].c
    with pytest.raises(KeyError):
        parameters.entry(Parameter(zeros(1)))


def test_an_element_of_a_shard_is_located_in_the_parameters_own_shape() -> None:
    chunk = Chunk(rank=1, size=2, distributed=True)
    parameters = ParameterMap([chunk], SIZES)
    own, own_of_c = reduced_pieces([chunk])
    # The shard begins with element 6 of the buffer, which is element 2 of the 2 x 3 parameter.
    assert parameters.locate(own, 0) == (entry(parameters, "a"), (0, 2))
    assert parameters.locate(own, 3) == (entry(parameters, "a"), (1, 2))
    assert parameters.locate(own, 4) is None
    assert parameters.locate(own_of_c, 1) == (entry(parameters, "c"), (3,))


def test_a_sharding_that_does_not_tell_where_it_begins_gives_no_index() -> None:
    model = Linear(2, 2)
    parameters = ParameterMap([model], SIZES)
    assert parameters.locate(Piece(0, -1, 0, -1, zeros(2)), 1) == (parameters.entries[0], None)


def test_a_scalar_has_an_empty_index() -> None:
    scalar = replace(ParameterMap([Chunk()], SIZES).entries[0], shape=())
    assert index_in(scalar, 0, 0) == ()


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
