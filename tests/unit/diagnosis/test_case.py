"""What a case says of its incident beyond the fields of the record."""

from __future__ import annotations

import pytest

from megatron_nanguard.records.incident import DeviceCount, MicrobatchLosses
from megatron_nanguard.records.postmortem import RankSets, ScalerState
from megatron_nanguard.records.step.replay import ReplayPass
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import arbitration, case, origin

STATE = ScalerState(False, True, 2)


def test_a_scaler_is_dynamic_only_where_the_loss_has_a_scale() -> None:
    assert case(loss_scale=1024.0, scaler=STATE).scaler == STATE
    assert case(loss_scale=4.0).scaler is None
    assert case(scaler=STATE).scaler is None


def test_the_suspect_ranks_are_those_of_the_origins_else_those_that_were_bad_before() -> None:
    sets = RankSets((1, 4), (), ())

    assert case(ranks=sets, origin=(origin(), origin(rank=2, ranks=(2, 3)))).incident.suspect_ranks == {2, 3, 5}
    assert case(ranks=sets).incident.suspect_ranks == {1, 4}


def test_an_origin_is_named_with_its_rank_only_where_there_are_several() -> None:
    first, unseen = (
        origin(),
        origin(operator="unseen writer", output="w", module="", rank=0, phase="load", microbatch=None),
    )

    assert case(origin=(first,)).name(first) == "log in decoder.layers.3.mlp"
    assert case(origin=(first, unseen)).name(first) == "log in decoder.layers.3.mlp (rank 5, backward of micro-batch 2)"
    assert case(origin=(first, unseen)).name(unseen) == "unseen writer on w (rank 0, load)"


def test_origins_are_found_by_kind_and_by_the_base_name_of_their_operator() -> None:
    log, unseen = origin(operator="aten.log_.default"), origin(kind=OriginKind.UNSEEN)
    both = case(origin=(log, unseen))

    assert both.origins_of(OriginKind.UNSEEN) == (unseen,)
    assert both.origins_in("log", "exp") == (log,)


def test_the_same_operator_on_several_ranks() -> None:
    same = case(origin=(origin(), origin(rank=7), origin(rank=2, module="m")))

    assert same.ranks_alike == (5, 7)
    assert case(origin=(origin(),)).ranks_alike == ()


@pytest.mark.parametrize(
    ("passes", "wavers", "went_away"),
    [
        ({}, False, False),
        ({"plain": "yes", "traced": "yes", "probed": "yes"}, False, False),
        ({"plain": "no"}, False, True),
        ({"plain": "yes", "traced": "partly", "probed": "no"}, True, True),
    ],
)
def test_a_fault_that_a_replay_does_not_show_again(passes: dict[str, str], wavers: bool, went_away: bool) -> None:
    replayed = case(passes=tuple(ReplayPass(label, came) for label, came in passes.items()))  # type: ignore[arg-type]

    assert (replayed.wavers, replayed.went_away) == (wavers, went_away)
    assert replayed.came_back("synchronous") is None


def test_a_call_that_was_given_nan_is_not_usable() -> None:
    good, given_nan = arbitration(), arbitration(inputs_bad=True)

    assert case(arbitrations=(given_nan, good)).usable_calls == (good,)
    assert case(arbitrations=(good,)).has_saved_call
    assert not case(arbitrations=(given_nan, arbitration(captured=False))).has_saved_call


def test_unknown_losses_do_not_count_as_finite() -> None:
    assert not case().has_finite_losses
    assert case(losses=(MicrobatchLosses(0, 1, 1.0, 1.0, ()),)).has_finite_losses
    assert not case(losses=(MicrobatchLosses(0, 1, 1.0, 1.0, (1,)),)).has_finite_losses


def test_a_device_that_saturates() -> None:
    npu = case(devices=(DeviceCount("npu", "Test NPU", "saturation", 8),))

    assert (npu.backend, npu.saturates) == ("npu", True)
    assert (case().backend, case().saturates) == ("", False)
