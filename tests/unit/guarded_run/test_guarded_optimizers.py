"""The size of a capture, said once for all ranks."""

from __future__ import annotations

from megatron_nanguard.guarded_run.guarded_optimizers import log_capture_size
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from tests.unit.conftest import Log


def test_the_last_rank_logs_the_size_over_all_ranks(world_of_one: None, log: Log) -> None:
    for number, size in enumerate((1 << 30, 3 << 30)):
        handshake = RunHandshake((0, 1), 300)
        handshake.rank = number
        assert log.messages == []
        log_capture_size(handshake, 1, size)
    assert log.messages == ["--nanguard-capture full: each incident takes 4.00 GiB over all 2 ranks"]


def test_a_second_optimizer_is_counted_by_itself(world_of_one: None, log: Log) -> None:
    for optimizer in (1, 2):
        log_capture_size(RunHandshake((0,), 301), optimizer, optimizer << 30)
    assert [message.split(" takes ")[1] for message in log.messages] == [
        "1.00 GiB over all 1 ranks",
        "2.00 GiB over all 1 ranks",
    ]
