"""The walk back where a list of a trace was cut."""

from __future__ import annotations

from megatron_nanguard.diagnosis.joining.join import join
from tests.unit.diagnosis.factories import group, message, p2p, sink, to_arrival, to_origin, trace, traced_origin


def test_a_sender_whose_list_was_cut_is_not_called_finite() -> None:
    received = message(15, p2p(0, 4), 9, operator="recv_")
    others = tuple(message(event, group(0, 1), event, sent="nan") for event in range(256))
    cut = trace(0, departures=others, truncated=3)

    joined = join([cut, trace(4, arrivals=(received,), sinks=(sink(to_arrival(0)),))])

    assert joined.origins == ()
    assert joined.notes == ("the walk ended at a list that was cut on rank 0; there may be further origins",)


def test_a_later_message_in_a_cut_list_shows_that_the_earlier_one_was_finite() -> None:
    received = message(15, p2p(0, 4), 9, operator="recv_")
    others = tuple(message(event, p2p(0, 4), 2 * event, operator="send", sent="nan") for event in range(256))
    cut = trace(0, departures=others, truncated=3)

    joined = join([cut, trace(4, arrivals=(received,), sinks=(sink(to_arrival(0)),))])

    assert [found.operator for found in joined.origins] == ["recv_"]


def test_a_cause_that_was_cut_away_is_no_unseen_writer() -> None:
    eight = tuple(traced_origin(event) for event in range(8))

    joined = join([trace(0, origins=eight, truncated=1, sinks=(sink(to_origin(8)),))])

    assert joined.origins == ()
    assert joined.notes == ("the walk ended at a list that was cut on rank 0; there may be further origins",)
