"""By when it had begun, where no operator is known: a loss that was not finite leaves only its forward and before."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks

BEGAN: Final = phrase(
    "The loss of micro-batch {microbatch} was NaN or Inf on {who}, so it began by the end of that forward; "
    "the operator is not known{why}."
)
GONE: Final = phrase(": the replay was clean")
NOT_RUN: Final = phrase(": the step was not run again")
NOT_FOUND: Final = ""


def began_by(incident: Incident) -> str:
    """One sentence on the first bad loss of a step without an origin; empty where no loss was bad.

    Args:
        incident: merged, with what came of the replay.
    """
    bad = next((losses for losses in incident.losses if losses.nonfinite_ranks), None)
    if incident.origin or bad is None:
        return ""
    return BEGAN.format(microbatch=bad.index, who=name_ranks(bad.nonfinite_ranks), why=_why(incident))


def _why(incident: Incident) -> str:
    if not incident.replay.done:
        return NOT_RUN
    came_back = any(one.came_back != "no" for one in incident.replay.passes)
    return NOT_FOUND if came_back else GONE
