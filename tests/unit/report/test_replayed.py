"""What a replay adds to the report: origin, causes, advice, infection and the passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from megatron_nanguard.diagnosis import verdict
from megatron_nanguard.diagnosis.advice import advise
from megatron_nanguard.records.incident import Cause, Infected
from megatron_nanguard.records.replay import ReplayPass, ReplaySummary
from megatron_nanguard.records.trace import OriginKind, TensorFacts
from megatron_nanguard.report import advice, causes, infection, origins, ranks, replay, report_text
from megatron_nanguard.report.blocks import Block
from tests.unit.diagnosis.factories import NAN, arbitration, evidence, origin
from tests.unit.factories import SETS, incident

DP = "data-parallel group of tp{} pp{}, ranks {}, {}"
INFECTED = (
    Infected(4, "allreduce_ no. 38", "tensor-parallel group of pp1 dp0, ranks 4, 5", (5,), "backward, final_layernorm"),
    Infected(2, "allreduce_coalesced_ no. 0", DP.format(0, 0, 0, 2), (0,)),
)
FOUND = evidence(
    audited=True,
    origins=(origin(path=("log in decoder.layers.3.mlp", "mul in decoder.layers.3.mlp")),),
    passes=(ReplayPass("plain", "yes"), ReplayPass("traced", "yes")),
    exact=True,
    arbitrations=(arbitration(repeats=8, repeats_bad=8, peer="bad", reference_fp64="bad"),),
)

TEXT = """\
What happened
  Step 3: something was not finite.
  run     20260101-120000-ab12
  step    3
  kind    gradient before reduction
  layout  8 ranks: TP2 PP2 DP2

Origin
  where      rank 5 (tp1pp1dp0), backward of micro-batch 2, decoder.layers.3.mlp
  operator   log -> nan
  output     0, (4, 8) bfloat16: nan, 3 NaN, 0 Inf, largest finite 1.5
  positions  (0, 1) (2, 5)
  line       model.py:7 in f
  then       log in decoder.layers.3.mlp > mul in decoder.layers.3.mlp

Causes, most likely first
  numerics, confidence 0.95
    + values outside of its domain: log in decoder.layers.3.mlp (rank 5, backward of micro-batch 2)
    + aten.log.default on rank 5 is not finite in higher precision either
    next: the same steps with --lr halved, from the last checkpoint

What helps
  A logarithm or root was taken of zero or of a negative value.
    check: Look at the smallest input of the call in the bundle, and where it should have been positive.
    change: Clamp the input to a small positive value, or use log_softmax or logsumexp in place of log of a probability.

Ranks
  bad before the reduction  0, 1, 4, 5
  bad after it only         2, 3, 6, 7
  clean                     none

Infection: 2 ranks through communication alone
  ranks  from  by                          group                                         first used
  4      5     allreduce_ no. 38           tensor-parallel group of pp1 dp0, ranks 4, 5  backward, final_layernorm
  2      0     allreduce_coalesced_ no. 0  data-parallel group of tp0 pp0, ranks 0, 2    -

Replay
  equal to the first pass  bit for bit
  passes                   plain, traced

What was done
  all ranks left with exit code 65 before any weight changed
  policy     abort
  exit code  65

Files
  merged  DIR/incident.json
"""


def test_a_replayed_incident_reads_as_a_whole() -> None:
    replayed = incident(
        ranks=SETS,
        origin=FOUND.origins,
        infected=INFECTED,
        causes=verdict(FOUND),
        advice=advise(FOUND),
        replay=ReplaySummary(True, "", True, ("plain", "traced")),
    )

    assert report_text(replayed, Path("DIR")) == TEXT


def test_without_a_replay_every_section_of_it_is_left_out() -> None:
    for section in (origins, causes, advice, infection, replay):
        assert section.describe(incident()) is None


def test_without_an_origin_the_infection_is_told_by_the_layout() -> None:
    assert infection.describe(incident(infected=INFECTED)) is None
    assert len(ranks.describe(incident(infected=INFECTED)).notes) == 2
    assert ranks.describe(incident(infected=INFECTED, origin=(origin(),))).notes == ()


def test_several_origins_are_numbered_and_cut() -> None:
    block = origins.describe(incident(origin=tuple(origin(rank=rank, facts=None) for rank in range(5))))

    assert block is not None
    assert block.title == "Origin: 5 that do not depend on each other, earliest first"
    assert [row for row in block.rows if row[0].startswith("where")] == [
        (f"where ({rank + 1})", f"rank {rank} (tp1pp1dp0), backward of micro-batch 2, decoder.layers.3.mlp")
        for rank in range(3)
    ]
    assert block.notes == ("... and 2 more origins",)


def test_a_collective_is_told_with_all_its_members() -> None:
    spoiled = origin(
        kind=OriginKind.COMMUNICATION,
        operator="allreduce_",
        output="no. 4 of tensor-parallel group of pp1 dp0, ranks 4, 5",
        pattern="inf",
        positions=(),
        facts=None,
        forward_operator=None,
        source_line=None,
        module="",
        ranks=(4, 5),
    )

    assert origins.describe(incident(origin=(spoiled,))) == Block(
        "Origin",
        rows=(
            ("where", "ranks 4, 5, backward of micro-batch 2"),
            ("operator", "allreduce_ -> inf"),
            ("output", "no. 4 of tensor-parallel group of pp1 dp0, ranks 4, 5"),
        ),
    )


def test_everything_that_is_known_of_an_origin_is_told() -> None:
    known = origin(
        operator="FusedAttentionBackward",
        forward_operator="FusedAttention",
        facts=replace(NAN, name="grad of k", layout="head 2 (dim 1)"),
        positions=((3,),),
        inputs=(TensorFacts("q", (4,), "bfloat16", "finite", absmax=2.0),),
        times=3,
        path=tuple("abcdef"),
    )

    block = origins.describe(incident(origin=(known,)))

    assert block is not None
    assert block.rows[1:] == (
        ("operator", "FusedAttentionBackward -> nan"),
        ("made by", "FusedAttention of the forward"),
        ("output", "grad of k, (4, 8) bfloat16: nan, 3 NaN, 0 Inf, largest finite 1.5, head 2 (dim 1)"),
        ("positions", "(3)"),
        ("input", "q, (4,) bfloat16: finite, largest finite 2"),
        ("line", "model.py:7 in f"),
        ("times", "3"),
        ("then", "a > b > c > d > ... 2 more"),
    )


def test_the_first_three_causes_are_told_in_full() -> None:
    names = ("data", "numerics", "operator", "framework")
    many = tuple(Cause(name, 0.5, ("a",), ("b",), ("c",), "d") for name in names)

    assert causes.describe(incident(causes=many[:1])) == Block(
        "Causes, most likely first",
        notes=("data, confidence 0.50", "  + a", "  - b", "  not tested: c", "  next: d"),
    )
    block = causes.describe(incident(causes=(*many, replace(many[0], cause="hardware_transient"))))
    assert block is not None
    assert block.notes[-1] == "less likely: framework (0.50), hardware transient (0.50)"


def test_advice_of_a_later_version_is_named_only() -> None:
    assert advice.describe(incident(advice=("cosmic_ray",))) == Block("What helps", notes=("cosmic ray",))


def test_many_ways_of_infection_are_counted() -> None:
    many = tuple(Infected(rank, f"recv_ no. {rank}", f"rank {rank} to rank 9", (rank,)) for rank in range(20))

    block = infection.describe(incident(origin=(origin(),), infected=many))

    assert block is not None
    assert len(block.rows) == 12
    assert block.notes == ("... and 8 more ways",)


def test_a_replay_that_is_not_exact_says_so() -> None:
    inexact = ReplaySummary(True, "", False, ("plain",))

    assert replay.describe(incident(replay=inexact)) == Block(
        "Replay",
        rows=(
            ("equal to the first pass", "no: its bits differ from those of the first pass"),
            ("passes", "plain"),
        ),
    )
