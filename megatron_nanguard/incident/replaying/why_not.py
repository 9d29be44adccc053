"""Why the step is not run again."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.rank_summary import ExchangeOutcome
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.step.replay import ReplaySummary


def why_no_replay(guarded: GuardedOptimizer) -> str:
    """Why the step cannot be run again on this rank; empty when it can."""
    if guarded.step.recorder is None:
        return guarded.step.why_no_recorder
    call = guarded.step.recorder.call
    if call is None:
        return phrase("the schedule's call was not seen")
    why_not = call.why_not()
    # The first pipeline stage takes the tokens, and the first of its tensor-parallel ranks reads them for all.
    reads_data = guarded.coordinates.tp == guarded.coordinates.pp == 0
    if not why_not and reads_data and not call.recording.num_fetched:
        return phrase(
            "no micro-batch was taken through the data iterator of the schedule; the data came from elsewhere, and "
            "cannot be handed out again"
        )
    return why_not


def refusal(outcome: ExchangeOutcome, why_not: str, fault: str | None) -> ReplaySummary | None:
    """Why no rank runs the step again; None if all do. The same on all ranks but for the obstacle.

    Args:
        why_not: this rank cannot; empty when it can.
        fault: of the guard on this rank.
    """
    if outcome.kind is Kind.DEAD_STEP:
        return ReplaySummary(why_not=phrase("the step that went bad is the one before; its data is gone"))
    if outcome.kind is Kind.NORM_OVERFLOW:
        return ReplaySummary(why_not=phrase("every element is finite: there is no operator to look for"))
    if not outcome.cannot_replay:
        return None
    obstacle = why_not or (phrase("a part of the guard failed there ({fault})", fault=fault) if fault else "")
    return ReplaySummary(why_not=obstacle or _others(outcome.cannot_replay), obstacle=obstacle)


def _others(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return phrase("rank {rank} cannot run the step again, see the post-mortem there", rank=ranks[0])
    return phrase(
        "rank {rank} and {more} more cannot run the step again, see the post-mortem there",
        rank=ranks[0],
        more=len(ranks) - 1,
    )
