"""What is noted beside a join."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.diagnosis.joining.join import join
from tests.unit.diagnosis.factories import group, message, sink, to_arrival, to_origin, trace, traced_origin


def test_ranks_with_the_same_note_share_one() -> None:
    received = message(15, group(0, 1, 2, 3), 9)
    broken = [replace(trace(rank), broken="RuntimeError in log") for rank in (2, 3)]

    joined = join([trace(0, arrivals=(received,), sinks=(sink(to_arrival(0)),)), *broken], missing=(1,))

    assert joined.notes == (
        "ranks 2, 3 gave no verdict: RuntimeError in log",
        "origin lies beyond rank 1, whose trace is missing",
        "origin lies beyond ranks 2, 3, whose trace is broken",
    )


def test_what_was_special_about_the_pass_is_noted_once() -> None:
    marked = [trace(rank, labels=("marker fill", *(("eager",) if rank == 1 else ()))) for rank in (0, 1)]

    assert join(marked).notes == ("traced replay: marker fill", "traced replay of rank 1: eager")


def test_without_an_origin_the_notes_count_what_had_no_effect() -> None:
    without, found = (
        trace(0, num_contained=3, num_meant=2),
        trace(1, origins=(traced_origin(),), sinks=(sink(to_origin()),)),
    )

    assert join([without, trace(1, num_meant=1)]).notes == (
        "bad events without effect on any gradient, loss or message: 3",
        "infinities that were meant, such as those of a mask: 3",
    )
    assert join([without, found]).notes == ()
