"""All rules together: the fault of a field report is given its class, and nothing is said without a fact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from megatron_nanguard.diagnosis.rules import RULES, Rule
from megatron_nanguard.diagnosis.verdict import verdict
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.incident import BatchSpot, MicrobatchLosses
from megatron_nanguard.records.postmortem import Kind, RankSets, ScalerState
from megatron_nanguard.records.step.replay import AuditFinding, ReplayPass
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import NAN, arbitration, case, earlier, origin

FINITE_LOSS = (MicrobatchLosses(2, 2, 1.0, 1.5, ()),)
BAD_LOSS = (MicrobatchLosses(2, 2, None, None, (5,)),)
INF = replace(NAN, pattern="inf")
ALWAYS = {"repeats": 8, "repeats_bad": 8}


def passes(**came_back: str) -> tuple[ReplayPass, ...]:
    return tuple(ReplayPass(label, outcome) for label, outcome in came_back.items())  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.cause)
def test_a_rule_without_facts_gives_no_cause(rule: Rule) -> None:
    assert rule.reading(case()) is None


def test_nothing_known_is_undecided() -> None:
    assert verdict(case()) == (
        RankedCause(
            cause="undecided",
            confidence=1.0,
            for_=("no fact speaks for any cause",),
            against=(),
            not_tested=(
                "the step again",
                "weights, moments and batch before the step",
                "from which operator the bad values came",
            ),
            next="the same steps with CUDA_LAUNCH_BLOCKING=1 (ASCEND_LAUNCH_BLOCKING=1 on Ascend): "
            "clean if something is waited for too late",
        ),
    )


CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "F01 NaN in the batch": (
        "data",
        {
            "audited": True,
            "audit": (AuditFinding("batch", "micro-batch 2, key weights", "nan", 5),),
            "origin": (origin(kind=OriginKind.OUTSIDE, operator="tensor (4, 8) float32", module=""),),
        },
    ),
    "F03 labels all masked": (
        "loss_or_mask",
        {"origin": (origin(operator="div", module=""),), "zero_tokens": (BatchSpot(5, 2),), "losses": BAD_LOSS},
    ),
    "F06 exp of the branch not picked": (
        "loss_or_mask",
        {"origin": (origin(operator="exp", pattern="inf", facts=INF, phase="forward"),), "losses": FINITE_LOSS},
    ),
    "F10 fully masked row": (
        "loss_or_mask",
        {"origin": (origin(operator="_softmax", phase="forward", module="decoder.layers.0.self_attention"),)},
    ),
    "F13 wrong backward": (
        "operator",
        {
            "origin": (origin(operator="FusedAttentionBackward", output="grad of k"),),
            "losses": FINITE_LOSS,
            "arbitrations": (arbitration(**ALWAYS, peer="bad", reference_fp64="finite"),),
        },
    ),
    "F19 half-written buffer": (
        "uninitialised_or_race",
        {
            "origin": (origin(kind=OriginKind.NEVER_WRITTEN, operator="add"),),
            "passes": passes(plain="no", synchronous="no", marker="yes"),
        },
    ),
    "F22 stale bucket": (
        "uninitialised_or_race",
        {"origin": (origin(kind=OriginKind.OUTSIDE, operator="gradient of decoder.layers.3.mlp.linear_fc1.weight"),)},
    ),
    "F24 race that vanishes under synchronisation": (
        "uninitialised_or_race",
        {"passes": passes(plain="yes", traced="no", synchronous="no")},
    ),
    "F27 corrupted receive buffer": (
        "communication",
        {"origin": (origin(kind=OriginKind.COMMUNICATION, operator="recv_", ranks=(5,)),)},
    ),
    "F34 range of fp16": (
        "numerics",
        {
            "origin": (origin(operator="mm", phase="forward", pattern="inf", facts=replace(INF, dtype="float16")),),
            "arbitrations": (arbitration(**ALWAYS, out_of_range=True, reference_fp64="finite"),),
        },
    ),
    "log of a negative": (
        "numerics",
        {"origin": (origin(phase="forward"),), "arbitrations": (arbitration(**ALWAYS, reference_fp64="bad"),)},
    ),
    "fp16 sum over ranks": (
        "numerics",
        {"origin": (origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", pattern="inf", ranks=(4, 5)),)},
    ),
    "F41 only the norm overflows": ("norm_overflow", {"kind": Kind.NORM_OVERFLOW, "grad_norm": float("inf")}),
    "F42 NaN in the clip coefficient": ("framework", {"kind": Kind.DEAD_STEP, "clip_coefficient": float("nan")}),
    "F43 overflow at every scale": (
        "numerics",
        {
            "origin": (origin(operator="mul", pattern="inf", facts=replace(INF, dtype="float16")),),
            "scaler": ScalerState(False, False, 8),
            "loss_scale": 1.0,
            "lower_scale": "bad",
        },
    ),
    "F44 NaN weights": (
        "state_corruption",
        {
            "audited": True,
            "audit": (AuditFinding("weight", "decoder.layers.1.mlp.linear_fc1.weight", "nan", 5),),
            "origin": (origin(kind=OriginKind.OUTSIDE, operator="parameter decoder.layers.1.mlp.linear_fc1.weight"),),
        },
    ),
    "F47 poisoned second moment": (
        "state_corruption",
        {"audited": True, "audit": (AuditFinding("exp_avg_sq", "output_layer.weight", "negative", 1),)},
    ),
    "F50 bit flip, call known": (
        "hardware_transient",
        {
            "origin": (origin(operator="mm"),),
            "passes": passes(plain="no"),
            "ranks": RankSets((5,), (0,), ()),
            "arbitrations": (arbitration(repeats=8, repeats_bad=0),),
        },
    ),
    "F51 device bound": (
        "hardware_persistent",
        {
            "origin": (origin(operator="mm"),),
            "arbitrations": (arbitration(**ALWAYS, peer="finite", peer_rank=1, reference_fp64="finite"),),
        },
    ),
    "N01 scale search": (
        "loss_scaler",
        {
            "origin": (origin(kind=OriginKind.SCALER, operator="_to_copy", pattern="inf"),),
            "scaler": ScalerState(True, False, 0),
            "loss_scale": 2.0**32,
        },
    ),
    "batch changed after it was fetched": (
        "uninitialised_or_race",
        {
            "changed_after_fetch": (BatchSpot(5, 2),),
            "origin": (origin(kind=OriginKind.OUTSIDE, operator="tensor (4, 8) float32", module=""),),
        },
    ),
    "alarm without anything bad": (
        "checker_artifact",
        {"ranks": RankSets((), (), (0, 1)), "own_faults": (1,), "exact": True, "passes": passes(plain="no")},
    ),
    "F53 sometimes, no second device": (
        "undecided",
        {
            "origin": (origin(operator="mm"),),
            "losses": FINITE_LOSS,
            "arbitrations": (arbitration(repeats=8, repeats_bad=2),),
        },
    ),
    "clean replay and nothing else": ("undecided", {"passes": passes(plain="no"), "ranks": RankSets((5,), (), ())}),
    "an operator that was not tried again": ("undecided", {"origin": (origin(operator="mm"),)}),
}


@pytest.mark.parametrize(("expected", "facts"), CLASSES.values(), ids=CLASSES)
def test_a_fault_of_the_field_is_given_its_class(expected: str, facts: dict[str, Any]) -> None:
    found = verdict(case(**facts))

    assert found[0].cause == expected, found
    assert all(cause.for_ for cause in found)
    steps = [cause.next for cause in found if cause.next]
    assert found[0].next and len(steps) == len(set(steps))


def test_the_whole_verdict_on_a_wrong_kernel() -> None:
    facts = CLASSES["F13 wrong backward"][1]
    call = "aten.log.default on rank 5"
    where = "FusedAttentionBackward in decoder.layers.3.mlp"

    assert verdict(case(**facts)) == (
        RankedCause(
            cause="operator",
            confidence=0.98,
            for_=(
                f"finite values in, nan out: {where}",
                f"only the backward is bad, every loss is finite: {where}",
                f"{call} is bad 8 times of 8, its reference finite",
                f"{call} is bad on another device as well",
            ),
            against=(),
            not_tested=(),
            next="the same steps with --transformer-impl local: clean if a fused kernel is wrong",
        ),
    )


def test_one_switch_separates_the_first_two_causes() -> None:
    found = verdict(case(**CLASSES["F53 sometimes, no second device"][1]))

    assert [cause.cause for cause in found] == ["undecided", "hardware_transient", "operator"]
    assert found[0].for_ == ("passing hardware fault (0.73) and faulty operator (0.62): neither stands out",)
    assert found[0].next == (
        "python bundle/repro.py --device cuda (npu on Ascend) on another host: "
        "clean points to passing hardware fault, bad again to faulty operator"
    )


def test_two_causes_that_are_both_settled_may_both_be_true() -> None:
    both = case(
        audited=True,
        audit=(AuditFinding("batch", "micro-batch 2, key weights", "nan", 0),),
        origin=(
            origin(kind=OriginKind.OUTSIDE, operator="tensor (4, 8) float32", rank=0),
            origin(operator="FusedAttentionBackward"),
        ),
        losses=FINITE_LOSS,
        arbitrations=(arbitration(**ALWAYS, peer="bad", reference_fp64="finite"),),
    )

    assert {cause.cause for cause in verdict(both)[:2]} == {"data", "operator"}


def test_a_hundred_ranks_with_the_same_fault_weigh_as_one() -> None:
    one = case(origin=(origin(operator="mm"),))
    many = case(origin=tuple(origin(operator="mm", rank=rank, module=f"m{rank}") for rank in range(100)))

    (first,), (second,) = (tuple(c for c in verdict(each) if c.cause == "operator") for each in (one, many))

    assert first.confidence == second.confidence
    assert len(second.for_) == 4
    assert second.for_[-1] == "and 97 more like it"


def test_hardware_is_never_called_persistent_without_a_second_device() -> None:
    alone = case(origin=(origin(operator="mm"),), arbitrations=(arbitration(**ALWAYS, reference_fp64="finite"),))

    assert "hardware_persistent" not in {cause.cause for cause in verdict(alone)}


def test_a_clean_replay_alone_does_not_decide_for_the_device() -> None:
    facts = case(
        passes=passes(plain="no", synchronous="no", marker="no"),
        exact=True,
        ranks=RankSets((5,), (0, 1), ()),
        earlier=(earlier(1, 5),),
    )

    transient = next(cause for cause in verdict(facts) if cause.cause == "hardware_transient")

    assert transient.confidence <= 0.4
    assert verdict(facts)[0].cause == "undecided"
