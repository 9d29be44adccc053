"""The order of a screening; nothing else knows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.json.conversion import from_json, to_json
from megatron_nanguard.records.screening import RankScreening, Screening
from megatron_nanguard.screening.crew import Crew
from megatron_nanguard.screening.hints import hints
from megatron_nanguard.screening.judging import judge
from megatron_nanguard.screening.meeting import RanksMissing
from megatron_nanguard.screening.naming import naming_in
from megatron_nanguard.screening.trials import Trials

LAST_WORDS_SECONDS = 20.0
"""For results and the exit code, once every rank has met every other or been named."""


@dataclass(frozen=True)
class Request:
    """What is to be screened.

    Attributes:
        sizes: the layout.
        deadline: seconds that nothing waits longer than.
        memory_share: of the free memory of each device that is tried; None for the default of its kind.
    """

    sizes: ParallelSizes
    deadline: float
    memory_share: float | None


def screen(request: Request, tell: Callable[[Screening], None]) -> int:
    """Screen the ranks of this job; every one of them calls it.

    Args:
        request: the same on every rank.
        tell: gets the result, on one rank.
    Returns:
        0 when nobody was named, else 1, alike on all ranks.
    Collective: all ranks.
    """
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    began = time.monotonic()
    crew = Crew.assemble(request.deadline, request.memory_share)
    trials = Trials(crew, request.sizes)
    missing: dict[int, str] = {}
    try:
        trials.run()
    except RanksMissing as late:
        missing = late.at
    meeting = crew.meeting
    meeting.hand_in(to_json(trials.result).decode())
    if meeting.rank == min(rank for rank in range(meeting.world) if rank not in missing):
        found = meeting.results(meeting.world - len(missing), LAST_WORDS_SECONDS)
        results = [from_json(RankScreening, each) for each in found]
        seconds = time.monotonic() - began
        screening = _conclude(request.sizes, results, missing, trials.notes, started=started, seconds=seconds)
        tell(screening)
        meeting.announce(int(bool(screening.outliers)))
    code = meeting.announced(LAST_WORDS_SECONDS + request.deadline)
    crew.leave(code, len(missing))
    return code


def _conclude(
    sizes: ParallelSizes,
    ranks: Sequence[RankScreening],
    missing: dict[int, str],
    notes: Sequence[str],
    *,
    started: str,
    seconds: float,
) -> Screening:
    return Screening(
        started=started,
        seconds=seconds,
        sizes=sizes,
        outliers=judge(ranks, missing, naming_in(sizes)),
        hints=hints(ranks),
        notes=(*notes, *_unsupported(ranks)),
        ranks=tuple(ranks),
    )


def _unsupported(ranks: Sequence[RankScreening]) -> list[str]:
    checks = [check for each in ranks for check in each.collectives if check.result == "unsupported"]
    names = sorted({check.operation for check in checks})
    return [f"not tried, the backend has no such collective: {', '.join(names)}"] if names else []
