"""The merged incident as it is written three times, and the sentence of it in the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_nanguard.incident import merged_file as merged_file_module
from megatron_nanguard.incident.arbitrating import CAME_BACK_NOWHERE
from megatron_nanguard.incident.merged_file import MergedFile, sentence
from megatron_nanguard.incident.rank_summary import ExchangeOutcome
from megatron_nanguard.incident.sharing import Evidence
from megatron_nanguard.postmortem.run_directory import RunDirectory, trace_name
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.incident import Incident, Origin
from megatron_nanguard.records.json.record_file import from_json
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.records.step.replay import ReplayPass, ReplaySummary
from megatron_nanguard.records.suspect_call import SavedCall
from tests.unit.diagnosis.factories import sink, to_origin, trace, traced_origin
from tests.unit.factories import ABORT, REPLICA_0, REPLICA_1, SETS, SIZES, demo_postmortem, incident, place

OUTCOME = ExchangeOutcome(RankSets((0,), (), ()), (), (), Kind.GRADIENT_BEFORE_REDUCTION)
ORIGIN = Origin(0, "tp0pp0dp0", 2, "forward", "decoder.layers.1.mlp", "log", "0", "nan", "gelu.py:7 in act", ())
WHERE = (
    "Step 3: gradients of rank 0 were not finite before the data-parallel reduction. It began on rank 0, forward of "
    "micro-batch 2: log in decoder.layers.1.mlp -> nan at gelu.py:7 in act."
)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (RankedCause("numerics", 0.86, (), (), (), ""), "Most likely: numerics (86%)."),
        (RankedCause("undecided", 0.7, (), (), (), ""), "The cause is undecided."),
    ],
)
def test_the_sentence_names_ranks_origin_and_cause(cause: RankedCause, words: str) -> None:
    assert sentence(3, OUTCOME, incident(origin=(ORIGIN,), causes=(cause,))) == f"{WHERE} {words}"


def test_without_a_merged_incident_the_sentence_names_the_ranks() -> None:
    assert sentence(3, OUTCOME, None) == WHERE.partition(" It began")[0]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Signals of all ranks."""
    run = RunDirectory(tmp_path, "run-1", lambda line: pytest.fail(line))
    for rank in range(8):
        run.write_postmortem("incidents/step_00000003", replace(demo_postmortem(rank), phase="signal", ranks=None))
    return run


def written(run: RunDirectory) -> Incident:
    return from_json(Incident, (run.path / "incidents/step_00000003/incident.json").read_bytes())


def merged_file(run: RunDirectory, saves_calls: bool = True) -> MergedFile:
    outcome = ExchangeOutcome(SETS, (REPLICA_0,), (REPLICA_1,), Kind.GRADIENT_BEFORE_REDUCTION)
    return MergedFile(run, "incidents/step_00000003", outcome, saves_calls=saves_calls)


def test_after_the_exchange_the_sets_are_on_disk_and_nothing_is_judged(run: RunDirectory) -> None:
    merged_file(run).after_exchange(())

    told = written(run)
    assert (told.ranks, told.groups, told.infected_groups) == (SETS, (REPLICA_0,), (REPLICA_1,))
    assert (told.policy.action, told.origin, told.causes, told.missing_ranks) == ("unknown", (), (), ())


def test_after_the_replay_the_origin_is_on_disk_and_nothing_is_judged(run: RunDirectory) -> None:
    merged = merged_file(run)
    merged.after_exchange(())
    for rank in range(8):
        found = (traced_origin(),) if rank == 5 else ()
        traced = trace(rank, origins=found, sinks=(sink(to_origin()),) if found else ())
        run.write(f"incidents/step_00000003/{trace_name(place(rank), SIZES)}", traced)

    merged.after_replay(ReplaySummary(True, "", True))

    told = written(run)
    assert [(origin.rank, origin.operator) for origin in told.origin] == [(5, "log")]
    assert (told.replay, told.causes) == (ReplaySummary(True, "", True), ())

    path = merged.complete(ABORT, ())
    concluded = merged.known
    assert path is not None
    assert written(run) == concluded
    assert concluded is not None
    assert [origin.rank for origin in concluded.origin] == [5]
    assert concluded.causes and concluded.policy == ABORT


@pytest.mark.parametrize(
    ("summary", "saves_calls", "has_bundle"),
    [
        (ReplaySummary(True, passes=(ReplayPass("plain", "no"),)), True, True),
        (ReplaySummary(True, passes=(ReplayPass("plain", "no"),)), False, False),
        (ReplaySummary(False, "switched off"), True, False),
    ],
)
def test_a_bundle_gives_the_reason_for_no_suspect_call(
    run: RunDirectory, summary: ReplaySummary, saves_calls: bool, has_bundle: bool
) -> None:
    for rank in range(8):
        complete = replace(demo_postmortem(rank), replay=summary)
        run.write_postmortem("incidents/step_00000003", complete)
    merged = merged_file(run, saves_calls)
    merged.after_exchange(())

    merged.complete(ABORT, ())
    concluded = merged.known

    bundle = run.path / "incidents/step_00000003/bundle"
    assert bundle.exists() is has_bundle
    if has_bundle:
        assert sorted(path.name for path in bundle.iterdir()) == ["call.json", "repro.py"]
        call = from_json(SavedCall, (bundle / "call.json").read_bytes())
        assert concluded is not None
        assert (call.operator, call.why_not, call.cause) == ("", CAME_BACK_NOWHERE, concluded.causes[0].cause)


def test_where_nothing_can_be_written_or_sent_nothing_is_merged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    merged = merged_file(RunDirectory(tmp_path / "file", "run-1", lambda line: None))

    merged.after_exchange(())
    merged.after_replay(ReplaySummary(True, "", True))

    assert not merged.sees(8, False)
    assert merged.complete(ABORT, ()) is None
    assert merged.known is None


def evidence(ranks: Sequence[int]) -> list[Evidence]:
    """What the ranks have found; the origin is on rank 5."""
    found = []
    for rank in ranks:
        origins = (traced_origin(),) if rank == 5 else ()
        traced = trace(rank, origins=origins, sinks=(sink(to_origin()),) if origins else ())
        found.append(Evidence(replace(demo_postmortem(rank), replay=ReplaySummary(True, "", True)), traced))
    return found


def test_where_nothing_can_be_written_what_was_sent_is_merged_up_to_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    merged = merged_file(RunDirectory(tmp_path / "file", "run-1", lambda line: None))
    merged.after_exchange(evidence([0])[:1])

    assert merged.complete(ABORT, evidence([0, 5])) is None

    known = merged.known
    assert known is not None
    assert (known.ranks, [origin.rank for origin in known.origin]) == (SETS, [5])
    assert known.causes and known.policy == ABORT
    assert known.missing_ranks == (1, 2, 3, 4, 6, 7)


def test_what_was_sent_counts_more_than_an_older_file_of_the_same_rank(run: RunDirectory) -> None:
    merged = merged_file(run)
    merged.after_exchange(())
    assert merged.known is not None and not merged.known.replay.done

    merged.complete(ABORT, evidence(range(8)))

    assert merged.known.replay.done and merged.known.missing_ranks == ()
    assert [origin.rank for origin in written(run).origin] == [5]


def test_all_files_are_there_only_with_every_rank_and_trace(run: RunDirectory) -> None:
    merged = merged_file(run)
    assert merged.sees(8, False)
    assert not merged.sees(9, False)
    assert not merged.sees(8, True)


def test_a_rule_that_fails_leaves_what_was_merged_and_joined(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = merged_file(run)
    merged.after_exchange(())
    for each in evidence(range(8)):
        assert each.trace is not None
        run.write(f"incidents/step_00000003/{trace_name(place(each.trace.rank), SIZES)}", each.trace)
    merged.after_replay(ReplaySummary(True, "", True))

    def no_rule(*args: object) -> None:
        raise LookupError("planted by the test")

    monkeypatch.setattr(merged_file_module, "conclude", no_rule)
    with pytest.raises(LookupError):
        merged.complete(ABORT, ())
    assert merged.known is not None
    assert (merged.known.policy, [origin.rank for origin in merged.known.origin]) == (ABORT, [5])
