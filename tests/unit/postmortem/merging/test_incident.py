"""Post-mortems of all ranks become one incident."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.merging.incident import ExchangedSets, merge
from megatron_nanguard.records.incident import DeviceCount, Incident, Infected, MicrobatchLosses
from megatron_nanguard.records.machine.device import DeviceFacts
from megatron_nanguard.records.phrase import Phrasing, phrase
from megatron_nanguard.records.postmortem import Kind, Postmortem, RankSets
from tests.unit.factories import ABORT, NO_FLAGS, REPLICA_0, REPLICA_1, SETS, demo_postmortem, postmortem

DEMO = [demo_postmortem(rank) for rank in range(8)]


def merged(postmortems: list[Postmortem]) -> Incident:
    return merge(postmortems, exchanged=None, policy=ABORT)


def test_the_incident_of_the_demo_is_complete() -> None:
    noted = [replace(one, notes=("c",)) for one in DEMO]
    incident = merge(noted, exchanged=None, policy=ABORT, files=["a", "b"])

    assert incident.run_id == "20260101-120000-ab12"
    assert incident.step == 3
    assert incident.kind is Kind.GRADIENT_BEFORE_REDUCTION
    assert incident.summary == (
        "Step 3: gradients of ranks 0, 1, 4, 5, that is data-parallel replica 0: all TP, all PP, were not finite "
        "before the data-parallel reduction. Ranks 2, 3, 6, 7 became bad only in the data-parallel "
        "reduction."
    )
    assert incident.ranks == SETS
    assert incident.groups == (REPLICA_0,)
    assert incident.infected_groups == (REPLICA_1,)
    assert incident.infected == (
        Infected(2, "data-parallel reduction", "data-parallel group of tp0 pp0", (0,)),
        Infected(3, "data-parallel reduction", "data-parallel group of tp1 pp0", (1,)),
        Infected(6, "data-parallel reduction", "data-parallel group of tp0 pp1", (4,)),
        Infected(7, "data-parallel reduction", "data-parallel group of tp1 pp1", (5,)),
    )
    assert incident.losses == (
        MicrobatchLosses(0, 4, 10.5, 10.5, ()),
        MicrobatchLosses(1, 4, 10.25, 10.25, ()),
    )
    assert incident.policy is ABORT
    assert incident.devices == (DeviceCount("cpu", "Test CPU", "not_applicable", 8),)
    assert incident.files == ("a", "b")
    assert incident.missing_ranks == ()
    assert incident.notes == ("8 ranks: c",)
    assert incident.replay.done is False


def test_the_order_of_the_files_does_not_matter() -> None:
    assert to_comparable(merged(DEMO[::-1])) == to_comparable(merged(DEMO))


def to_comparable(incident: Incident) -> object:
    """NaN is not equal to itself: parameters without their norms."""
    return replace(incident, parameters=tuple(replace(entry, norm=None) for entry in incident.parameters))


def test_a_rank_that_wrote_nothing_is_listed() -> None:
    assert merged([DEMO[rank] for rank in (0, 1, 2, 4, 7)]).missing_ranks == (3, 5, 6)


def test_sets_come_from_the_one_rank_that_finished_the_exchange() -> None:
    files = [replace(record, phase="signal", ranks=None, groups=()) for record in DEMO[:7]] + [DEMO[7]]

    incident = merged(files)

    assert incident.ranks == SETS
    assert incident.groups == (REPLICA_0,)


def test_without_any_exchange_the_sets_come_from_the_flags_of_each_rank() -> None:
    files = [replace(record, phase="signal", ranks=None, groups=()) for record in DEMO[4:]] + [
        postmortem(0, ranks=None, groups=())
    ]

    incident = merged(files)

    assert incident.ranks == RankSets(bad_before=(4, 5), bad_after_only=(6, 7), clean=(0,))
    assert incident.groups == ()


def test_the_sets_of_the_exchange_beat_those_of_the_files() -> None:
    other = ExchangedSets(RankSets((0,), (), (1, 2, 3, 4, 5, 6, 7)), (), ())

    assert merge(DEMO, exchanged=other, policy=ABORT).ranks == other.ranks


def test_the_earliest_kind_wins_where_signals_differ() -> None:
    kinds = (Kind.NORM_OVERFLOW, Kind.LOSS, Kind.GRADIENT_AFTER_REDUCTION)

    incident = merged([postmortem(rank, kind=kind) for rank, kind in enumerate(kinds)])

    assert incident.kind is Kind.GRADIENT_AFTER_REDUCTION


def test_numbers_that_only_some_ranks_know_are_kept() -> None:
    incident = merged([postmortem(0), postmortem(1, grad_norm=math.inf, loss_scale=4096.0, clip_coefficient=0.0)])

    assert (incident.grad_norm, incident.loss_scale, incident.clip_coefficient) == (math.inf, 4096.0, 0.0)


def test_a_note_of_one_rank_names_it_and_equal_notes_are_written_once() -> None:
    incident = merged(
        [postmortem(0, notes=("all alike",)), postmortem(1, notes=("all alike", "alone")), postmortem(2)],
    )

    assert incident.notes == ("2 ranks: all alike", "rank 1: alone")


def test_each_model_of_device_has_its_own_count() -> None:
    blind = DeviceFacts("npu", 0, "Test NPU", "saturation", 1, {})

    incident = merged([postmortem(0, device=blind), postmortem(1), postmortem(2)])

    assert incident.devices == (
        DeviceCount("cpu", "Test CPU", "not_applicable", 2),
        DeviceCount("npu", "Test NPU", "saturation", 1),
    )


def test_without_a_policy_outcome_the_action_is_unknown() -> None:
    policy = merge([postmortem(0)], exchanged=None, policy=None).policy

    assert (policy.name, policy.action, policy.exit_code) == ("abort", "unknown", None)


def test_nothing_to_merge_is_an_error() -> None:
    with pytest.raises(PostmortemError, match="no rank's post-mortem"):
        merged([])


def test_flags_of_a_loss_count_as_bad_before_when_there_was_no_exchange() -> None:
    incident = merged([postmortem(4, ranks=None, flags=replace(NO_FLAGS, loss=True))])

    assert incident.ranks.bad_before == (4,)


def test_phrase_templates_of_the_ranks_and_of_the_merge_are_kept() -> None:
    why = phrase("the data iterator is a {kind}, which is no iterator", kind="dict")
    phrases = {str(why): Phrasing(why.template, {"kind": "dict"})}
    ranks = [replace(demo_postmortem(rank), phrases=phrases if rank == 5 else {}) for rank in range(8)]

    incident = merged(ranks)

    assert incident.phrases[str(why)] == phrases[str(why)]
    assert incident.phrases[incident.summary].template == "Step {step}: {what}"
