"""Which of the ranks that were bad before the reduction had only been sent bad values: the origin lies elsewhere."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import opening, phrase
from megatron_nanguard.records.rank_words import name_ranks

RECEIVED: Final = phrase("{who} received bad values before it, by other communication.")


def received_before(incident: Incident) -> str:
    """One sentence on them; empty where no origin is known, or every rank has its own.

    Args:
        incident: merged, with origin and path of infection.
    """
    began = {rank for origin in incident.origin for rank in origin.members}
    sent = {infected.rank for infected in incident.infected if infected.from_ranks}
    ranks = sorted((sent & set(incident.ranks.bad_before)) - began)
    return RECEIVED.format(who=opening(name_ranks(ranks))) if incident.origin and ranks else ""
