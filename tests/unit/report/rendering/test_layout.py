"""The whole text of an incident, wide and narrow."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_nanguard.postmortem.merging.incident import merge
from megatron_nanguard.report import blocks_of
from megatron_nanguard.report.blocks import Block, Grid, GridMark, Point, Tone
from megatron_nanguard.report.rendering.layout import plain_text
from tests.unit.factories import ABORT, demo_postmortem, incident
from tests.unit.report.factories import report_text
from tests.unit.report.replayed import REPLAYED

EXPECTED = Path(__file__).parents[1] / "expected"

DEMO = """\
Verdict
  Step 3: gradients of ranks 0, 1, 4, 5, that is data-parallel replica 0: all TP, all PP, were not finite before the
  data-parallel reduction. Ranks 2, 3, 6, 7 became bad only in the data-parallel reduction.
  job  stopped on every rank with exit code 65, before any weight changed; start again from the last checkpoint before
       step 3
  Where it began is not known: the step was not run again.

Ranks
       dp0    dp1
  pp0  0x 1x  2~ 3~
  pp1  4x 5x  6~ 7~
  x bad before the reduction (4 ranks)  ~ bad after it only (4 ranks)
  in a cell: tensor-parallel ranks
  bad before the reduction  0, 1, 4, 5: data-parallel replica 0: all TP, all PP
  bad after it only         2, 3, 6, 7: data-parallel replica 1: all TP, all PP
  clean                     none
  rank 2: infected by rank 0 through data-parallel reduction (data-parallel group of tp0 pp0)
  rank 3: infected by rank 1 through data-parallel reduction (data-parallel group of tp1 pp0)
  rank 6: infected by rank 4 through data-parallel reduction (data-parallel group of tp0 pp1)
  rank 7: infected by rank 5 through data-parallel reduction (data-parallel group of tp1 pp1)

Micro-batches and their losses
  micro-batch  lowest  highest  what is unusual
  0            10.5    10.5
  1            10.25   10.25

Run and step
  run         20260101-120000-ab12
  step        3
  first seen  in the gradients of a rank, before the data-parallel reduction
  layout      8 ranks: TP2 PP2 DP2
  device      8 x Test CPU
  versions    megatron-core 0.19.2, torch 2.14.0
  policy      all ranks left with exit code 65 before any weight changed

Files
  directory  /data/DIR
  all ranks  incident.json
  each rank  rank00000_tp0pp0dp0.json and 7 more

Bad gradients by parameter: 5 parameters before the reduction, 5 after it
  parameter                 bad before on ranks  bad after on ranks  values  NaN  Inf
  decoder.layers.3
    mlp.linear_fc1.weight   4, 5                 4-7                 NaN     -    -
  decoder.layers.2
    mlp.linear_fc1.weight   4, 5                 4-7                 NaN     -    -
  decoder.layers.1
    mlp.linear_fc1.weight   0, 1                 0-3                 NaN     -    -
  decoder.layers.0
    mlp.linear_fc1.weight   0, 1                 0-3                 NaN     -    -
  embedding
    word_embeddings.weight  0, 1                 0-3                 NaN     -    -
  NaN and Inf count elements, summed over the ranks: before the reduction where their values are still known, else after
  it; nearest to the loss first
  "-": the reduction overwrote the values before they could be counted
"""

EMPTY = """\
Verdict
  Step 3: something was not finite.
  job  stopped on every rank with exit code 65, before any weight changed; start again from the last checkpoint before
       step 3
  Where it began is not known: the step was not run again.

Ranks
       dp0    dp1
  pp0  0? 1?  2? 3?
  pp1  4? 5?  6? 7?
  ? nothing known (8 ranks)
  in a cell: tensor-parallel ranks
  bad before the reduction  none
  bad after it only         none
  clean                     none

Run and step
  run         20260101-120000-ab12
  step        3
  first seen  in the gradients of a rank, before the data-parallel reduction
  layout      8 ranks: TP2 PP2 DP2
  policy      all ranks left with exit code 65 before any weight changed

Files
  directory  /data/DIR
  all ranks  incident.json
"""


@pytest.mark.parametrize("width", [120, 60])
def test_a_replayed_incident_reads_as_a_whole(width: int) -> None:
    expected = (EXPECTED / f"replayed_{width}.txt").read_text()

    assert plain_text(blocks_of(REPLAYED), width) == expected
    assert max(map(len, expected.splitlines())) <= width


def test_the_demo_reads_as_a_whole() -> None:
    files = ["rank00000_tp0pp0dp0.json", *(str(rank) for rank in range(1, 8))]
    merged = merge(map(demo_postmortem, range(8)), exchanged=None, policy=ABORT, files=files)

    assert report_text(merged, Path("/data/DIR")) == DEMO


def test_an_incident_of_which_nothing_is_known_reads_as_a_whole() -> None:
    assert report_text(incident(), Path("/data/DIR")) == EMPTY


def test_no_line_ends_in_blanks() -> None:
    text = plain_text([Block("T", rows=(("a", ""), ("bbb", "c")))])

    assert text == "T\n  a\n  bbb  c\n"


def test_a_long_path_is_never_broken() -> None:
    path = "/data/" + "long-directory/" * 20

    assert f"  {path}\n" in plain_text([Block("T", notes=(f"written to {path}",))])


def test_no_blocks_give_an_empty_text() -> None:
    assert plain_text([]) == ""


def test_nothing_in_a_record_steers_the_terminal() -> None:
    evil = "\x1b[2J\n"
    block = Block(
        evil,
        text=(evil,),
        grid=Grid((evil,), ((evil, ((GridMark(Tone.BAD, evil),),)),), ((Tone.BAD, evil),), evil),
        columns=(evil, evil),
        rows=((evil, evil),),
        points=(Point(evil, evil, below=(Point(evil),)),),
        tree=(Point(evil, detail=evil),),
        notes=(evil,),
    )

    text = plain_text([block])

    assert "\x1b" not in text
    assert text.count("\\x1b[2J\\n") == 17
