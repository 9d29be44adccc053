"""The whole text of an incident, and how blocks are laid out."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.postmortem.merging import merge
from megatron_nanguard.report import report_text
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.text import render
from tests.unit.factories import ABORT, demo_postmortem, incident

DEMO = """\
What happened
  Step 3: gradients of ranks 0, 1, 4, 5, that is data-parallel replica 0: all TP, all PP, were not finite before the
  data-parallel reduction. Ranks 2, 3, 6, 7 went bad through communication alone.
  run     20260101-120000-ab12
  step    3
  kind    gradient before reduction
  layout  8 ranks: TP2 PP2 DP2
  device  8 x Test CPU

Ranks
  bad before the reduction  0, 1, 4, 5  data-parallel replica 0: all TP, all PP
  bad after it only         2, 3, 6, 7  data-parallel replica 1: all TP, all PP
  clean                     none
  infected 2 from 0 by data-parallel reduction (data-parallel group of tp0 pp0)
  infected 3 from 1 by data-parallel reduction (data-parallel group of tp1 pp0)
  infected 6 from 4 by data-parallel reduction (data-parallel group of tp0 pp1)
  infected 7 from 5 by data-parallel reduction (data-parallel group of tp1 pp1)

Bad gradients before the reduction: 5 parameters, nearest to the loss first
  parameter                               norm  NaN  Inf  ranks
  decoder.layers.3.mlp.linear_fc1.weight  nan   -    -    4, 5
  decoder.layers.2.mlp.linear_fc1.weight  nan   -    -    4, 5
  decoder.layers.1.mlp.linear_fc1.weight  nan   -    -    0, 1
  decoder.layers.0.mlp.linear_fc1.weight  nan   -    -    0, 1
  embedding.word_embeddings.weight        nan   -    -    0, 1
  bad after the reduction: 5 parameters (5 nan)
  "-": the reduction overwrote the values before they could be counted

Losses
  micro-batch  lowest  highest  not finite on ranks
  0            10.5    10.5     none
  1            10.25   10.25    none

What was done
  all ranks left with exit code 65 before any weight changed
  policy     abort
  exit code  65

Files
  merged    DIR/incident.json
  per rank  DIR/rank00000_tp0pp0dp0.json and 7 more
"""

EMPTY = """\
What happened
  Step 3: something was not finite.
  run     20260101-120000-ab12
  step    3
  kind    gradient before reduction
  layout  8 ranks: TP2 PP2 DP2

Ranks
  bad before the reduction  none
  bad after it only         none
  clean                     none

What was done
  all ranks left with exit code 65 before any weight changed
  policy     abort
  exit code  65

Files
  merged  DIR/incident.json
"""


def test_the_demo_reads_as_a_whole() -> None:
    files = ["rank00000_tp0pp0dp0.json", *(str(rank) for rank in range(1, 8))]
    merged = merge(map(demo_postmortem, range(8)), exchanged=None, policy=ABORT, files=files)

    assert report_text(merged, Path("DIR")) == DEMO


def test_an_incident_of_which_nothing_is_known_reads_as_a_whole() -> None:
    assert report_text(incident(), Path("DIR")) == EMPTY


def test_no_line_ends_in_blanks() -> None:
    text = render([Block("T", rows=(("a", ""), ("bbb", "c")))])

    assert text == "T\n  a\n  bbb  c\n"


def test_a_long_path_is_never_broken() -> None:
    path = "/data/" + "long-directory/" * 20

    assert f"  {path}\n" in render([Block("T", notes=(f"written to {path}",))])


def test_nothing_to_say_is_an_empty_text() -> None:
    assert render([]) == ""
