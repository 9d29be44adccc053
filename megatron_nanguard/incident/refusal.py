"""Why the step is not run again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.outcome import ExchangeOutcome
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.replay import ReplaySummary

FROM_ELSEWHERE: Final = phrase(
    "no micro-batch was taken through the data iterator of the schedule; the data came from elsewhere, and cannot be "
    "handed out again"
)


def why_no_replay(subject: GuardedOptimizer) -> str:
    """Why the step cannot be run again on this rank; empty when it can."""
    if subject.recorder is None:
        return subject.why_no_recorder
    call = subject.recorder.call
    if call is None:
        return phrase("the schedule's call was not seen")
    return call.can_replay()[1] or (FROM_ELSEWHERE if _reads_data(subject) and not call.recording.num_fetched else "")


def _reads_data(subject: GuardedOptimizer) -> bool:
    """The first stage takes the tokens, and the first of its tensor-parallel ranks reads them for all."""
    return subject.coordinates.tp == subject.coordinates.pp == 0


def refusal(outcome: ExchangeOutcome, why_not: str, fault: str | None) -> ReplaySummary | None:
    """Why the step is not run again, alike on all ranks but for what stands against it on this one; None if it is.

    Args:
        why_not: this rank cannot; empty when it can.
        fault: of the guard on this rank.
    """
    if outcome.kind is Kind.DEAD_STEP:
        return ReplaySummary(why_not=phrase("the step that went bad is the one before; its data is gone"))
    if outcome.kind is Kind.NORM_OVERFLOW:
        return ReplaySummary(why_not=phrase("every element is finite: there is no operator to look for"))
    if outcome.all_can_replay:
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
