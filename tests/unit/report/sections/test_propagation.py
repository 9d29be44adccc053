"""The tree from the origin to every rank that went bad."""

from __future__ import annotations

from megatron_nanguard.records.incident import Infected
from megatron_nanguard.report.blocks import Block, Point, Tone
from megatron_nanguard.report.sections import propagation
from tests.unit.diagnosis.factories import origin
from tests.unit.report.factories import described, opened_incident

TP = "tensor-parallel group of pp1 dp0, ranks 4, 5"
DP = "data-parallel group of tp0 pp1, ranks 4, 6"


def transfer(text: str, detail: str, *below: Point) -> Point:
    return Point(text, tone=Tone.SPREAD, detail=detail, below=below)


def test_without_an_origin_or_without_a_spread_there_is_no_tree() -> None:
    infected = (Infected(4, "allreduce_ no. 38", TP, (5,)),)

    assert propagation.describe(opened_incident(infected=infected)) is None
    assert propagation.describe(opened_incident(origin=(origin(path=("log in decoder.layers.3.mlp",)),))) is None


def test_the_ranks_that_a_rank_made_bad_are_below_it() -> None:
    infected = (
        Infected(6, "allreduce_coalesced_ no. 0", DP, (4,), "finalize"),
        Infected(4, "allreduce_ no. 38", TP, (5,), "backward, final_layernorm"),
    )
    path = ("log in mlp", "mul in mlp", "add_ in mlp.weight")

    assert propagation.describe(opened_incident(origin=(origin(path=path),), infected=infected)) == Block(
        "How it spread: 2 ranks became bad through communication alone",
        tree=(
            Point(
                "rank 5: log in decoder.layers.3.mlp",
                tone=Tone.WORST,
                below=(
                    Point("on the rank:", detail="mul in mlp > add_ in mlp.weight"),
                    transfer(
                        "rank 4 by allreduce_ no. 38",
                        f"({TP}) first used in backward, final_layernorm",
                        transfer("rank 6 by allreduce_coalesced_ no. 0", f"({DP}) first used in finalize"),
                    ),
                ),
            ),
        ),
    )


def test_ranks_that_share_a_communication_share_a_line() -> None:
    infected = tuple(Infected(rank, "allreduce_ no. 0", "a group", (5,)) for rank in (9, 7, 8))

    block = described(propagation.describe, opened_incident(origin=(origin(),), infected=infected))

    assert block.tree[0].below == (transfer("ranks 7-9 by allreduce_ no. 0", "(a group)"),)


def test_a_long_path_keeps_its_end_which_is_the_gradient() -> None:
    block = described(propagation.describe, opened_incident(origin=(origin(path=tuple("abcdefgh")),)))

    assert block.title == "How it spread"
    assert block.tree[0].below == (Point("on the rank:", detail="b > c > d > ... 2 more > g > h"),)


def test_transfers_without_an_origin_are_listed_and_a_circle_of_them_ends() -> None:
    infected = (Infected(1, "recv_ no. 0", "", (2,)), Infected(2, "recv_ no. 1", "", (1,)))

    block = described(propagation.describe, opened_incident(origin=(origin(),), infected=infected))

    assert block.tree[1:] == (transfer("rank 1 by recv_ no. 0", ""), transfer("rank 2 by recv_ no. 1", ""))


def test_transfers_and_origins_beyond_the_limit_are_counted() -> None:
    infected = tuple(Infected(rank, f"recv_ no. {rank}", "", (5,)) for rank in range(10, 30))

    block = described(
        propagation.describe, opened_incident(origin=tuple(origin() for _ in range(5)), infected=infected)
    )

    assert len(block.tree) == 3
    assert len(block.tree[0].below) == 16
    assert block.notes == ("... and 4 more transfers", "... and 2 more origins")


def test_a_message_that_names_its_sender_needs_no_group() -> None:
    infected = (Infected(1, "PP recv from rank 5", "rank 5 to rank 1", (5,), "backward of micro-batch 2"),)

    block = described(propagation.describe, opened_incident(origin=(origin(),), infected=infected))

    assert block.tree[0].below == (
        transfer("rank 1 by PP recv from rank 5", "first used in backward of micro-batch 2"),
    )


def test_transfers_to_ranks_that_were_bad_already_are_below_the_tree() -> None:
    tied = Infected(4, "tied embeddings", "g", (0,), "finalize", "allreduce_ no. 0", ("output_layer.weight",))
    infected = (Infected(4, "TP all-reduce", TP, (5,)),)

    block = described(
        propagation.describe, opened_incident(origin=(origin(),), infected=infected, also_infected=(tied,))
    )

    assert block.notes == ("tied embeddings from rank 0 made more gradients of rank 4 bad: output_layer.weight",)
