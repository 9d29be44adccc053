"""The order of a screening: join, test on every rank, collect the results, name the outliers, leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.machine.screening import RankScreening, Screening
from megatron_nanguard.screening.outliers import find_outliers
from megatron_nanguard.screening.outliers.hints import hints
from megatron_nanguard.screening.participant import Participant
from megatron_nanguard.screening.rank_checks import RankChecks
from megatron_nanguard.screening.store_barrier import RanksMissing
from megatron_nanguard.topology.rank_sets import describe

RESULT_SECONDS = 20.0
"""Longest wait for the results and for the exit code, after the last stage."""


def screen(
    sizes: ParallelSizes, deadline: float, memory_share: float | None, report: Callable[[Screening], None]
) -> int:
    """Screen the ranks of this job; every rank calls it with the same arguments.

    Args:
        sizes: the layout.
        deadline: longest wait for one operation, in seconds.
        memory_share: share of each device's free memory that is tested; None for the default of its kind.
        report: called with the result, on the lowest rank that is there.
    Returns:
        0 when there is no outlier, else 1; the same on all ranks.
    Collective: all ranks.
    """
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    began = time.monotonic()
    participant = Participant.join(deadline, memory_share)
    rank_checks = RankChecks(participant, sizes)
    missing: dict[int, str] = {}
    try:
        rank_checks.run()
    except RanksMissing as late:
        missing = late.at
    barrier = participant.barrier
    barrier.store_result(to_json(rank_checks.result).decode())
    if barrier.rank == min(rank for rank in range(barrier.world) if rank not in missing):
        found = barrier.results(barrier.world - len(missing), RESULT_SECONDS)
        results = [from_json(RankScreening, each) for each in found]
        screening = Screening(
            started=started,
            seconds=time.monotonic() - began,
            sizes=sizes,
            outliers=find_outliers(results, missing, _rank_names(sizes)),
            hints=hints(results),
            notes=(*rank_checks.notes, *_unsupported(results)),
            ranks=tuple(results),
        )
        report(screening)
        barrier.set_exit_code(int(bool(screening.outliers)))
    code = barrier.exit_code(RESULT_SECONDS + deadline)
    participant.leave(code, len(missing))
    return code


def _rank_names(sizes: ParallelSizes) -> Callable[[int], str]:
    """Words for a rank of a layout, such as `rank 5 (TP 1, PP 1, DP 0)`."""
    places = {rank: Coordinates.in_default_order(rank, sizes) for rank in range(sizes.world)}
    return lambda rank: describe([rank], places, sizes)[0].words


def _unsupported(ranks: Sequence[RankScreening]) -> list[str]:
    names = sorted({check.operation for each in ranks for check in each.collectives if check.result == "unsupported"})
    return [f"not tried, the backend has no such collective: {', '.join(names)}"] if names else []
