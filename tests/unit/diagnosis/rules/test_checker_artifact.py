"""An alarm that nothing stands behind."""

from __future__ import annotations

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import ReplayPass
from tests.unit.diagnosis.factories import case, origin

judge = RULES[Cause.CHECKER_ARTIFACT].reading

ALL_CLEAN = RankSets((), (), (0, 1))


def test_a_failed_guard_and_no_bad_rank() -> None:
    facts = case(ranks=ALL_CLEAN, own_faults=(1,), passes=(ReplayPass("plain", "no"),), exact=True)

    assert judge(facts) == RankedCause(
        cause="checker_artifact",
        confidence=0.95,
        for_=(
            "a part of the guard itself failed on rank 1",
            "no rank holds a bad gradient or loss",
            "the replay is finite, and equal bit for bit",
        ),
        against=(),
        not_tested=(),
        next="",
    )


def test_an_origin_acquits_the_checker() -> None:
    found = judge(case(ranks=RankSets((5,), (), ()), own_faults=(1,), origin=(origin(),)))

    assert found is not None
    assert found.confidence < 0.05
    assert found.against == ("a bad gradient or loss leads back to an origin", "bad values on rank 5")


def test_bad_gradients_are_no_artifact() -> None:
    assert judge(case(ranks=RankSets((5,), (0,), ()))) is None
