"""Origins of several ranks in the order of time."""

from __future__ import annotations

from megatron_nanguard.diagnosis.joining.join import join
from tests.unit.diagnosis.factories import group, message, p2p, sink, to_arrival, to_origin, trace, traced_origin


def test_what_a_message_proves_to_be_earlier_comes_first_whatever_its_number() -> None:
    """Rank 2 departs with its fault (event 90) before rank 0 receives it (event 3) and fails on its own (event 4)."""
    sent = message(90, group(0, 2), sent="nan", causes=to_origin())
    traces = [
        trace(2, origins=(traced_origin(80),), departures=(sent,)),
        trace(
            0,
            origins=(traced_origin(4),),
            arrivals=(message(3, group(0, 2)),),
            sinks=(sink((*to_arrival(0), *to_origin())),),
        ),
    ]

    joined = join(traces)

    assert [found.rank for found in joined.origins] == [2, 0]
    assert joined.infected == ()
    assert joined.notes == ("rank 0 has an origin of its own and was reached by DP all-reduce as well",)


def test_calls_that_cross_on_two_ranks_do_not_stop_the_sorting() -> None:
    """Rank 0 starts the first collective before the second, rank 1 the other way round; neither waits."""
    first, second = group(0, 1), group(0, 1, 2)
    orders = {0: ((20, first), (30, second)), 1: ((20, second), (30, first))}
    traces = [
        trace(
            rank,
            origins=(traced_origin(event),),
            arrivals=[message(number, channel, sent="nan", causes=to_origin()) for number, channel in orders[rank]],
            sinks=(sink(to_origin()),),
        )
        for rank, event in ((0, 12), (1, 11))
    ]

    assert [found.rank for found in join(traces).origins] == [1, 0]


def test_origins_are_ordered_across_several_ranks() -> None:
    """From rank 0 by rank 1 to rank 2, which has the lowest numbers and fails last."""
    there, on = p2p(0, 1), p2p(1, 2)
    traces = [
        trace(
            0,
            origins=(traced_origin(80),),
            departures=(message(90, there, operator="send", sent="nan", causes=to_origin()),),
            sinks=(sink(to_origin()),),
        ),
        trace(
            1,
            arrivals=(message(40, there, operator="recv_"),),
            departures=(message(50, on, operator="send", sent="nan", causes=to_arrival(0)),),
        ),
        trace(
            2,
            origins=(traced_origin(4),),
            arrivals=(message(3, on, operator="recv_"),),
            sinks=(sink((*to_arrival(0), *to_origin())),),
        ),
    ]

    assert [found.rank for found in join(traces).origins] == [0, 2]
