"""Traces of hand-made ranks into one story."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from megatron_nanguard.diagnosis.joining.join import Joined, join
from megatron_nanguard.records.incident import Infected
from megatron_nanguard.records.trace import CauseLink, OriginKind, RankTrace, TensorFacts, TracedPlace
from tests.unit.diagnosis.factories import (
    LAYOUT_A,
    NAN,
    NORM,
    group,
    message,
    origin,
    p2p,
    sink,
    to_arrival,
    to_origin,
    trace,
    traced_origin,
)


def layout_a() -> list[RankTrace]:
    """A NaN in the backward of layer 3 on rank 5: TP partner, then both to the first stage, then the other replica."""
    tp, dp = group(4, 5), {rank: group(rank, rank + 2) for rank in (0, 1, 4, 5)}
    reduced: dict[str, Any] = {"operator": "allreduce_coalesced_", "first_used": None, "carries": "gradients"}
    sends = {4: p2p(4, 0), 5: p2p(5, 1)}
    traces = []
    for rank in (4, 5):
        back = to_origin() if rank == 5 else to_arrival(0)
        partner = message(20, tp, 38, first_used=NORM)
        sent = message(30, sends[rank], 2, operator="send", sent="nan", arrived="finite", causes=back)
        all_reduce = message(40, dp[rank], sent="nan", causes=back, **reduced)
        if rank == 5:
            partner = partner.but(sent="nan", causes=back)
        traces.append(
            trace(
                rank,
                origins=(traced_origin(),) if rank == 5 else (),
                arrivals=(partner, all_reduce),
                departures=(*((partner,) if rank == 5 else ()), sent, all_reduce),
                sinks=(sink(to_arrival(1)),),
            )
        )
    for rank in (0, 1):
        received = message(15, sends[rank + 4], 2, operator="recv_", first_used=NORM)
        all_reduce = message(25, dp[rank], sent="nan", causes=to_arrival(0), **reduced)
        traces.append(
            trace(rank, arrivals=(received, all_reduce), departures=(all_reduce,), sinks=(sink(to_arrival(1)),))
        )
    for rank in (2, 3, 6, 7):
        all_reduce = message(22, dp[rank - 2], **reduced)
        traces.append(trace(rank, arrivals=(all_reduce,), sinks=(sink(to_arrival(0)),)))
    return traces


REACHED = ("rank 1 has an origin of its own and was reached by all-reduce as well",)
NORM_WORDS = "backward of micro-batch 2, decoder.layers.3.pre_mlp_layernorm"
DP = "DP gradient all-reduce"
CALL = "allreduce_coalesced_ no. 0"


def test_a_fault_on_rank_5_of_layout_a_is_traced_to_every_rank_it_infected() -> None:
    assert join(layout_a()) == Joined(
        origins=(origin(),),
        infected=(
            Infected(0, "PP recv from rank 4", "rank 4 to rank 0", (4,), NORM_WORDS, "recv_ no. 2"),
            Infected(1, "PP recv from rank 5", "rank 5 to rank 1", (5,), NORM_WORDS, "recv_ no. 2"),
            Infected(2, DP, "data-parallel group of tp0 pp0, ranks 0, 2", (0,), call=CALL),
            Infected(3, DP, "data-parallel group of tp1 pp0, ranks 1, 3", (1,), call=CALL),
            Infected(
                4,
                "TP all-reduce",
                "tensor-parallel group of pp1 dp0, ranks 4, 5",
                (5,),
                NORM_WORDS,
                "allreduce_ no. 38",
            ),
            Infected(6, DP, "data-parallel group of tp0 pp1, ranks 4, 6", (4,), call=CALL),
            Infected(7, DP, "data-parallel group of tp1 pp1, ranks 5, 7", (5,), call=CALL),
        ),
    )


def test_the_order_of_the_files_does_not_matter() -> None:
    assert join(layout_a()[::-1]) == join(layout_a())


def test_no_trace_and_healthy_traces_give_an_empty_story() -> None:
    assert join([]) == Joined()
    assert join([trace(rank) for rank in LAYOUT_A]) == Joined()


def test_what_no_gradient_leads_to_is_no_origin() -> None:
    assert join([trace(0, origins=(traced_origin(),))]) == Joined()


def test_the_second_chunk_of_a_rank_is_named_by_its_global_layer() -> None:
    place = TracedPlace("forward", 1, 1, "decoder.layers.6.mlp", source_line="model.py:9 in g")
    first = trace(2, origins=(traced_origin(place=place),), sinks=(sink(to_origin()),))

    (found,) = join([first]).origins

    assert (found.rank, found.module, found.phase, found.microbatch) == (2, "decoder.layers.6.mlp", "forward", 1)
    assert found.source_line == "model.py:9 in g"


def test_a_collective_that_overflows_is_one_origin_for_all_its_members() -> None:
    overflow = message(30, group(0, 1), 4, arrived="inf", first_used=NORM)
    # Replica 1 is infected by it through the gradient reduction.
    sent = [message(50, group(rank, rank + 2), sent="inf", causes=to_arrival(0)) for rank in (0, 1)]
    traces = [
        trace(rank, arrivals=(overflow,), departures=(sent[rank],), sinks=(sink(to_arrival(0)),)) for rank in (0, 1)
    ]
    traces.append(trace(2, arrivals=(message(45, group(0, 2)),), sinks=(sink(to_arrival(0)),)))

    joined = join(traces)

    (found,) = joined.origins
    assert (found.kind, found.rank, found.ranks) == (OriginKind.COMMUNICATION, 0, (0, 1))
    assert (found.operator, found.pattern) == ("allreduce_", "inf")
    assert found.output == ("collective number 4 of tensor-parallel group of pp0 dp0, ranks 0, 1 in this step (from 0)")
    assert [(one.rank, one.from_ranks) for one in joined.infected] == [(2, (0,))]


def test_a_spoiled_collective_names_what_each_member_sent_and_where() -> None:
    put_in = TensorFacts("tensors", (4,), "float16", "finite", absmax=4e4, lowest=4e4, highest=4e4)
    came_out = TensorFacts("", (4,), "float16", "inf")
    overflow = message(30, group(0, 1), 4, arrived="inf", first_used=NORM).but(
        line="model.py:8 in g", put_in=put_in, came_out=came_out
    )

    joined = join([trace(rank, arrivals=(overflow,), sinks=(sink(to_arrival(0)),)) for rank in (0, 1)])

    (found,) = joined.origins
    assert found.inputs == (
        replace(put_in, name="tensors of rank 0"),
        replace(put_in, name="tensors of rank 1"),
    )
    assert (found.facts, found.source_line) == (came_out, "model.py:8 in g")


@pytest.mark.parametrize(("outsider", "notes"), [(0, ()), (2, REACHED)])
def test_messages_between_members_of_a_shared_origin_are_left_out(outsider: int, notes: tuple[str, ...]) -> None:
    """Rank 1 gets a second bad value, from a member of the origin that it shares or from rank 2 with one of its own."""
    shared, later = message(30, group(0, 1), 4, arrived="inf"), message(40, group(outsider, 1), 5)
    sent = later.but(sent="nan", causes=to_arrival(0) if outsider == 0 else to_origin())
    of_outsider = {"departures": (sent,), "sinks": (sink(to_arrival(0)),)}
    traces = [
        trace(0, arrivals=(shared,), **(of_outsider if outsider == 0 else {"sinks": (sink(to_arrival(0)),)})),
        trace(1, arrivals=(shared, later), sinks=(sink(to_arrival(0, 1)),)),
    ]
    if outsider == 2:
        traces.append(trace(2, origins=(traced_origin(),), departures=(sent,), sinks=(sink(to_origin()),)))

    assert join(traces).notes == notes


def test_a_bad_receive_from_a_finite_sender_is_the_communication() -> None:
    received = message(15, p2p(0, 4), 1, operator="recv_", first_used=NORM)

    joined = join([trace(0), trace(4, arrivals=(received,), sinks=(sink(to_arrival(0)),))])

    (found,) = joined.origins
    assert (found.kind, found.rank, found.operator) == (OriginKind.COMMUNICATION, 4, "recv_")
    assert (found.phase, found.module) == ("backward", NORM.module)
    assert found.output == "message number 1 of rank 0 to rank 4 in this step (from 0)"
    assert joined.infected == ()


def test_two_independent_faults_are_both_named_and_each_rank_is_attributed_to_the_right_one() -> None:
    """Ranks 2 and 5 are bad on their own, rank 0 by rank 2, rank 4 by rank 5."""
    own = {
        2: message(20, group(0, 2), sent="nan", causes=to_origin()),
        5: message(20, group(4, 5), sent="nan", causes=to_origin()),
    }
    traces = [
        trace(2, origins=(traced_origin(12),), arrivals=(own[2],), sinks=(sink(to_arrival(0)),)),
        trace(5, origins=(traced_origin(11),), arrivals=(own[5],), sinks=(sink(to_arrival(0)),)),
        trace(0, arrivals=(message(9, group(0, 2)),), sinks=(sink(to_arrival(0)),)),
        trace(4, arrivals=(message(9, group(4, 5)),), sinks=(sink(to_arrival(0)),)),
    ]

    joined = join(traces)

    assert [found.rank for found in joined.origins] == [5, 2]
    assert [(one.rank, one.from_ranks) for one in joined.infected] == [(0, (2,)), (4, (5,))]


def test_an_origin_beyond_a_missing_rank_is_said_to_be_there() -> None:
    without_5 = [each for each in layout_a() if each.rank != 5]

    joined = join(without_5, missing=(5,))

    assert joined.origins == ()
    assert joined.notes == ("origin lies beyond rank 5, whose trace is missing",)
    assert [one.rank for one in joined.infected] == [0, 1, 2, 3, 4, 6, 7]
    assert joined.infected[4] == Infected(4, "all-reduce", "ranks 4, 5", (), NORM_WORDS, "allreduce_ no. 38")


def test_a_missing_rank_off_the_path_is_mentioned() -> None:
    without_7 = [each for each in layout_a() if each.rank != 7]

    joined = join(without_7, missing=(7,))

    assert joined.origins == (origin(),)
    assert joined.notes == ("no trace of rank 7: an origin there would not show",)


def test_a_broken_rank_is_left_out_with_its_reason() -> None:
    traces = [replace(each, broken="RuntimeError in log") if each.rank == 5 else each for each in layout_a()]

    joined = join(traces)

    assert joined.origins == ()
    assert joined.notes == (
        "rank 5 gave no verdict: RuntimeError in log",
        "origin lies beyond rank 5, whose trace is broken",
    )


def test_a_gradient_without_a_known_writer_is_an_origin_of_its_own() -> None:
    (found,) = join([trace(3, sinks=(sink(()), sink((), "z.weight")))]).origins

    assert (found.kind, found.rank, found.phase) == (OriginKind.UNSEEN, 3, "accumulate")
    assert (found.module, found.output) == (
        "decoder.layers.3.mlp.linear_fc1",
        "gradient of decoder.layers.3.mlp.linear_fc1.weight",
    )


def test_unseen_writers_beside_a_known_origin_are_only_mentioned() -> None:
    joined = join([trace(3, origins=(traced_origin(),), sinks=(sink(to_origin()), sink((), "z.weight")))])

    assert [found.operator for found in joined.origins] == ["log"]
    assert joined.notes == ("rank 3: the writers of 1 bad gradients or messages were not seen",)


def test_a_bad_message_without_a_known_writer_names_its_sender() -> None:
    sent = message(8, p2p(0, 4), 0, operator="send", sent="nan", arrived="finite")
    received = message(15, p2p(0, 4), 0, operator="recv_")

    joined = join([trace(0, departures=(sent,)), trace(4, arrivals=(received,), sinks=(sink(to_arrival(0)),))])

    (found,) = joined.origins
    assert (found.kind, found.rank, found.output) == (OriginKind.UNSEEN, 0, "what it sent in send no. 0")
    assert [(one.rank, one.from_ranks) for one in joined.infected] == [(4, (0,))]


def test_many_origins_are_cut_and_counted() -> None:
    coords = "tp0pp0dp0"
    traces = [
        RankTrace(rank=rank, coords=coords, microbatch=0, origins=(traced_origin(rank),), sinks=(sink(to_origin()),))
        for rank in range(70)
    ]

    joined = join(traces)

    assert [found.rank for found in joined.origins] == list(range(64))
    assert joined.notes == ("6 more origins not listed",)


def test_a_weight_bad_on_every_rank_has_its_kind_and_name() -> None:
    place = TracedPlace("load", None, 0, "")
    found = traced_origin(kind=OriginKind.OUTSIDE, operator="parameter decoder.layers.1.w", place=place, outputs=(NAN,))

    (first, second) = join([trace(rank, origins=(found,), sinks=(sink(to_origin()),)) for rank in (0, 1)]).origins

    assert (first.rank, second.rank) == (0, 1)
    assert (first.kind, first.operator) == (OriginKind.OUTSIDE, "parameter decoder.layers.1.w")


def test_an_expert_group_is_named_by_its_axis() -> None:
    channel, coords = group(0, 1), {0: "tp0pp0dp0ep0", 1: "tp0pp0dp1ep1"}
    bad = message(5, channel, operator="alltoall_base_", sent="nan", causes=to_origin())
    first = trace(1, coords=coords[1], origins=(traced_origin(),), departures=(bad,))
    arrived = message(6, channel, operator="alltoall_base_")
    second = trace(0, coords=coords[0], arrivals=(arrived,), sinks=(sink((CauseLink("arrival", 0),)),))
    replica = trace(2, coords="tp0pp0dp2ep0")

    (infected,) = join([first, second, replica]).infected

    assert (infected.by, infected.call) == ("EP all-to-all", "alltoall_base_ no. 0")
    assert infected.group == "expert-parallel group of tp0 pp0, ranks 0, 1"


def test_gradients_of_tied_embeddings_reach_a_rank_that_was_bad_already() -> None:
    """Rank 4 goes bad by its partner; what the first stage sends for the embedding spoils one more gradient."""
    tp, tied = group(4, 5), group(0, 4)
    partner = message(20, tp, sent="nan", causes=to_origin())
    sent = message(40, tied, sent="nan", causes=to_arrival(0), carries="gradients")
    received = message(15, p2p(4, 0), 2, operator="recv_")
    traces = [
        trace(5, origins=(traced_origin(),), departures=(partner,), sinks=(sink(to_origin()),)),
        trace(
            4,
            arrivals=(message(20, tp), message(44, tied, carries="gradients")),
            departures=(message(30, p2p(4, 0), 2, operator="send", sent="nan", causes=to_arrival(0)),),
            sinks=(sink(to_arrival(0)), sink(to_arrival(1), "output_layer.weight")),
        ),
        trace(0, arrivals=(received,), departures=(sent,), sinks=(sink(to_arrival(0)),)),
    ]

    joined = join(traces)

    assert [(one.rank, one.by) for one in joined.infected] == [(0, "PP recv from rank 4"), (4, "TP all-reduce")]
    (later,) = joined.also_infected
    assert (later.rank, later.by, later.from_ranks) == (4, "gradient all-reduce of tied embeddings", (0,))
    assert later.gradients == ("output_layer.weight",)
    alone = trace(4, arrivals=(message(20, tp),), sinks=(sink(to_arrival(0)),))
    assert join([traces[0], alone]).also_infected == ()
    same_way = trace(
        4, arrivals=(message(20, tp), message(21, tp, 1)), sinks=(sink(to_arrival(0)), sink(to_arrival(1)))
    )
    again = message(21, tp, 1, sent="nan", causes=to_origin())
    assert join([replace(traces[0], departures=(partner.message, again.message)), same_way]).also_infected == ()
