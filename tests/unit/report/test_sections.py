"""Every section meets the empty incident, and says what only it says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.incident import (
    Cause,
    DeviceCount,
    Incident,
    Infected,
    MergedParameter,
    MicrobatchLosses,
    Origin,
    PolicyOutcome,
    ReplaySummary,
)
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.report import Section, causes, files, happened, losses, notes, parameters, policy, ranks
from megatron_nanguard.report.blocks import Block
from tests.unit.factories import REPLICA_0, SETS, incident

ORIGIN = Origin(5, "tp1pp1dp0", 2, "backward", "decoder.layers.3.mlp", "mul", "0", "nan", None, ())
DASH = '"-": the reduction overwrote the values before they could be counted'


def parameter(name: str, where: str = "local", nan_count: int | None = 3) -> MergedParameter:
    assert where in ("local", "reduced")
    return MergedParameter(name, where, "nan", math.nan, nan_count, 0, (4, 5), 2, ("tp0pp1dp0", "tp1pp1dp0"))  # type: ignore[arg-type]


def described(section: Section, record: Incident) -> Block:
    block = section(record)
    assert block is not None
    return block


@pytest.mark.parametrize("section", [parameters.describe, losses.describe, notes.describe])
def test_a_section_with_nothing_to_say_is_left_out(section: Section) -> None:
    assert section(incident()) is None


def test_what_happened_leaves_out_the_numbers_that_are_not_known() -> None:
    assert happened.describe(incident()) == Block(
        "What happened",
        text=("Step 3: something was not finite.",),
        rows=(
            ("run", "20260101-120000-ab12"),
            ("step", "3"),
            ("kind", "gradient before reduction"),
            ("layout", "8 ranks: TP2 PP2 DP2"),
        ),
    )


def test_what_happened_gives_the_numbers_that_are_known() -> None:
    one = ParallelSizes(1, 1, 1, 1, 1, 1, 1, 1)
    known = incident(
        sizes=one,
        grad_norm=math.inf,
        clip_coefficient=0.0,
        loss_scale=65536.0,
        devices=(DeviceCount("npu", "Test NPU", "saturation", 1),),
    )

    assert happened.describe(known).rows[3:] == (
        ("layout", "1 rank"),
        ("gradient norm", "inf"),
        ("clip coefficient", "0"),
        ("loss scale", "65536"),
        ("device", "1 x Test NPU, overflow mode saturation"),
    )


def test_empty_sets_read_as_none() -> None:
    assert ranks.describe(incident()) == Block(
        "Ranks",
        rows=(("bad before the reduction", "none", ""), ("bad after it only", "none", ""), ("clean", "none", "")),
    )


def test_missing_ranks_have_a_line_of_their_own() -> None:
    assert ranks.describe(incident(missing_ranks=(3, 6, 7))).rows[3] == ("no readable file", "3, 6, 7", "")


def test_where_every_local_gradient_was_finite_the_group_is_that_of_the_reduced_state() -> None:
    after = incident(
        kind=Kind.GRADIENT_AFTER_REDUCTION, ranks=RankSets((), (0, 1, 4, 5), (2, 3, 6, 7)), groups=(REPLICA_0,)
    )

    assert ranks.describe(after).rows[:2] == (
        ("bad before the reduction", "none", ""),
        ("bad after it only", "0, 1, 4, 5", "data-parallel replica 0: all TP, all PP"),
    )


def test_infected_ranks_that_share_a_way_are_told_together() -> None:
    way = ("data-parallel reduction", "data-parallel group of tp0 pp0", (0,))
    infected = (Infected(2, *way), Infected(6, "not known", "", ()), Infected(4, *way), Infected(3, *way))

    assert ranks.describe(incident(ranks=SETS, infected=infected)).notes == (
        "infected 2-4 from 0 by data-parallel reduction (data-parallel group of tp0 pp0)",
        "infected 6 by a way that is not known",
    )


def test_many_ways_of_infection_are_counted() -> None:
    infected = tuple(Infected(rank, "data-parallel reduction", f"group {rank}", (0,)) for rank in range(1, 12))

    told = ranks.describe(incident(infected=infected)).notes

    assert len(told) == 9
    assert told[-1] == "... and 3 more paths of infection"


def test_the_first_ten_parameters_are_shown_and_the_rest_counted() -> None:
    twelve = tuple(parameter(f"decoder.layers.{layer}.w") for layer in range(12, 0, -1))

    block = described(parameters.describe, incident(parameters=(*twelve, parameter("a", "reduced"))))

    assert block.title == "Bad gradients before the reduction: 12 parameters, nearest to the loss first"
    assert len(block.rows) == 10
    assert block.rows[0] == ("decoder.layers.12.w", "nan", "3", "0", "4, 5")
    assert block.notes == ("... and 2 more", "bad after the reduction: 1 parameter (1 nan)")


def test_parameters_bad_after_the_reduction_only_are_shown_as_such() -> None:
    block = described(parameters.describe, incident(parameters=(parameter("w", "reduced", None),)))

    assert block.title == "Bad gradients after the reduction: 1 parameter, nearest to the loss first"
    assert block.rows == (("w", "nan", "-", "0", "4, 5"),)
    assert block.notes == (DASH,)


def test_names_left_out_of_the_incident_are_counted() -> None:
    block = described(parameters.describe, incident(parameters=(parameter("w"),), parameters_truncated=40))

    assert block.notes == ("40 more names are in the files of the ranks only",)


def test_a_loss_that_is_not_finite_is_shown_however_late() -> None:
    many = tuple(MicrobatchLosses(index, 2, 1.0, 2.0, (4,) if index == 30 else ()) for index in range(40))

    block = described(losses.describe, incident(losses=many))

    assert [row[0] for row in block.rows] == ["0", "1", "2", "3", "4", "5", "6", "30"]
    assert block.rows[-1] == ("30", "1", "2", "4")
    assert block.notes == ("... and 32 more micro-batches",)


def test_a_policy_that_had_to_give_way_says_so() -> None:
    outcome = PolicyOutcome("skip", "abort", 65, "too many skips")

    assert policy.describe(incident(policy=outcome)) == Block(
        "What was done",
        text=("too many skips",),
        rows=(("policy", "skip"), ("done instead", "abort"), ("exit code", "65")),
    )


def test_a_skip_has_no_exit_code() -> None:
    outcome = PolicyOutcome("skip", "skip", None, "the step was skipped on all ranks")

    assert policy.describe(incident(policy=outcome)).rows == (("policy", "skip"),)


def test_a_blind_device_is_warned_of() -> None:
    blind = incident(devices=(DeviceCount("npu", "Test NPU", "saturation", 8),), notes=("rank 3: a note",))

    assert described(notes.describe, blind).notes == ("rank 3: a note", notes.SATURATION)


def test_a_replay_that_was_not_done_says_why() -> None:
    replay = ReplaySummary(why_not="no room")

    assert described(notes.describe, incident(replay=replay)).notes == ("the origin was not looked for: no room",)
    assert notes.describe(incident(replay=replay, origin=(ORIGIN,))) is None


def test_files_are_named_below_their_directory() -> None:
    directory = Path("DIR")

    assert files.describe(incident(), directory).rows == (("merged", "DIR/incident.json"),)
    assert files.describe(incident(files=("a", "b", "c")), directory).rows[1] == ("per rank", "DIR/a and 2 more")
    assert files.describe(incident(files=("a",)), directory).rows[1] == ("per rank", "DIR/a")


def test_a_merged_file_that_nobody_wrote_is_not_named() -> None:
    nobody = PolicyOutcome("abort", "unknown", None, "not known")
    assert files.describe(incident(files=("a",), policy=nobody), Path("DIR")).rows == (("per rank", "DIR/a"),)


def test_a_bundle_is_named_by_the_command_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    assert len(files.describe(incident(), tmp_path).rows) == 1
    (tmp_path / "bundle" / "call.json").touch()
    assert files.describe(incident(), tmp_path).rows[1] == ("reproduce", f"python {tmp_path}/bundle/repro.py")


def test_no_confidence_is_claimed_for_what_is_undecided() -> None:
    block = causes.describe(
        incident(causes=(Cause("undecided", 0.7, (), (), (), ""), Cause("data", 0.3, (), (), (), "")))
    )
    assert block is not None
    assert block.notes == ("undecided", "data, confidence 0.30")
