from __future__ import annotations

import pytest
import torch
from torch.nn import Linear

from megatron_nanguard.megatron_api.pieces import (
    NO_BUFFER,
    Piece,
    parameter_segments,
    params_summed_beyond_dp,
    reduced_pieces,
    surviving_local_pieces,
)
from tests.unit.megatron_api.chunks import Chunk, Group


def facts(pieces: list[Piece]) -> list[tuple[int, int, list[float]]]:
    """Bucket, start and elements of each piece."""
    return [(piece.bucket, piece.start, piece.data.tolist()) for piece in pieces]


def test_plain_ddp_is_one_piece_per_buffer() -> None:
    assert facts(reduced_pieces([Chunk(rank=1, size=2)])) == [(-1, 0, [float(i) for i in range(16)])]


def test_the_distributed_optimizer_consumes_its_shard_of_each_bucket() -> None:
    pieces = reduced_pieces([Chunk(rank=1, size=2, distributed=True)])
    assert facts(pieces) == [(0, 6, [6, 7, 8, 9, 10, 11]), (1, 14, [14, 15])]


def test_pieces_are_views_of_the_buffer() -> None:
    chunk = Chunk(rank=1, size=2, distributed=True)
    reduced_pieces([chunk])[1].data[0] = -1
    assert chunk.buffer.grad_data[14] == -1


def test_a_main_grad_outside_the_buffer_is_taken_in_its_place() -> None:
    chunk = Chunk(rank=1, size=2, distributed=True)
    chunk.a.main_grad_copy_in_grad_buffer = chunk.a.main_grad
    chunk.a.main_grad = torch.tensor([[100.0, 101.0, 102.0], [103.0, 104.0, 105.0]])
    assert facts(reduced_pieces([chunk])) == [(0, 6, [102, 103, 104, 105]), (1, 14, [14, 15])]


def test_other_shards_keep_local_values() -> None:
    pieces = surviving_local_pieces([Chunk(rank=1, size=2, distributed=True)])
    assert facts(pieces) == [(0, 0, [0, 1, 2, 3, 4, 5]), (1, 12, [12, 13])]


def test_plain_ddp_keeps_no_local_value() -> None:
    assert surviving_local_pieces([Chunk(rank=1, size=2)]) == []


def test_a_buffer_of_one_rank_alone_keeps_all_local_values() -> None:
    pieces = surviving_local_pieces([Chunk(distributed=True)])
    assert facts(pieces) == [(0, 0, [float(i) for i in range(12)]), (1, 12, [12, 13, 14, 15])]


def test_a_second_optimizer_instance_shares_what_one_rank_owns() -> None:
    assert surviving_local_pieces([Chunk(distributed=True, instances=2)]) == []


def test_a_step_that_reduces_whole_buckets_keeps_no_local_value() -> None:
    chunk = Chunk(rank=1, size=2, distributed=True)
    chunk.force_all_reduce = True
    assert surviving_local_pieces([chunk]) == []


def test_what_tensor_parallel_ranks_add_up_is_not_local() -> None:
    chunk = Chunk(rank=1, size=2, distributed=True)
    chunk.tp_group = Group(0, 2)
    chunk.b.sequence_parallel = True
    assert facts(surviving_local_pieces([chunk])) == [(0, 4, [4, 5]), (1, 12, [12, 13])]


def test_segments_leave_padding_out_and_count_inside_the_parameter() -> None:
    chunk = Chunk(rank=1, size=2, distributed=True)
    own, _ = reduced_pieces([chunk])
    assert parameter_segments([chunk], own) == [(chunk.a, 0, 4, 2)]
    whole = Piece(0, 0, -1, 0, chunk.buffer.grad_data)
    assert parameter_segments([chunk], whole) == [(chunk.b, 0, 3, 0), (chunk.a, 4, 10, 0), (chunk.c, 12, 16, 0)]


def test_segments_find_the_chunk_of_the_piece() -> None:
    chunks = [Chunk(), Chunk(rank=0, size=2, distributed=True)]
    last = reduced_pieces(chunks)[-1]
    assert (last.chunk, last.start) == (1, 12)
    assert [segment.param for segment in parameter_segments(chunks, last)] == [chunks[1].c]


def test_a_chunk_without_buffers_is_one_piece_per_gradient() -> None:
    model = Linear(2, 2)
    model.bias.grad = torch.tensor([5.0, 6.0])
    (piece,) = reduced_pieces([model])
    assert (piece.buffer, piece.start, piece.data.tolist()) == (NO_BUFFER, 0, [5, 6])
    assert parameter_segments([model], piece) == [(model.bias, 0, 2, 0)]


def names(chunk: Chunk) -> set[str]:
    ids = params_summed_beyond_dp(chunk)
    return {name for name, param in chunk.named_parameters() if id(param) in ids}


@pytest.mark.parametrize("mark", ["sequence_parallel", "average_gradients_across_tp_domain"])
def test_marks_that_count_where_there_are_tensor_parallel_ranks(mark: str) -> None:
    chunk = Chunk()
    setattr(chunk.a, mark, True)
    assert names(chunk) == set()
    chunk.tp_group = Group(0, 2)
    assert names(chunk) == {"a"}


@pytest.mark.parametrize("mark", ["shared_embedding", "pipeline_parallel", "flextron_router_pp_sync"])
def test_marks_that_count_where_there_are_stages(mark: str) -> None:
    chunk = Chunk()
    setattr(chunk.c, mark, True)
    assert names(chunk) == set()
    chunk.pp_group = Group(1, 2)
    assert names(chunk) == {"c"}


def test_the_norms_of_query_and_key_count_when_the_model_has_them() -> None:
    chunk = Chunk()
    chunk.q_layernorm = Linear(1, 1, bias=False)
    chunk.tp_group = Group(0, 2)
    assert names(chunk) == set()
    chunk.config.qk_layernorm = True
    assert names(chunk) == {"q_layernorm.weight"}


def test_weight_rematerialisation_adds_up_all_that_is_not_cut_by_it() -> None:
    chunk = Chunk()
    chunk.config.gtp_weight_remat_size = 2
    chunk.a.is_gtp_weight_remat = True
    assert names(chunk) == {"b", "c"}
