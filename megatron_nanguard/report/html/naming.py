"""How the page is called in a tab and a bookmark: incidents of a day must not look alike.

rank 5 index_put_ L3.mlp, step 3, bb8e
"""

from __future__ import annotations

import re
from typing import Final

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.report.formatting import counted

LAYER: Final = re.compile(r"^decoder\.layers\.(?=\d)")
NAMED: Final = 4
BEGAN: Final = phrase("{who} {what}")
NOT_FINITE: Final = phrase("{who} not finite")
TITLE: Final = phrase("{what}, step {step}, {run}")


def tab_title(incident: Incident) -> str:
    """What it was, the step, and the end of the run's name."""
    return TITLE.format(what=_what(incident), step=incident.step, run=incident.run_id.rpartition("-")[2])


def _what(incident: Incident) -> str:
    if not incident.origin:
        return NOT_FINITE.format(who=_who(incident.ranks.bad_before or incident.ranks.bad_after_only))
    first = incident.origin[0]
    module = LAYER.sub("L", first.module)
    return BEGAN.format(who=_who(first.members), what=f"{first.operator} {module}".rstrip())


def _who(ranks: tuple[int, ...]) -> str:
    return name_ranks(ranks) if len(ranks) <= NAMED else counted(len(ranks), "rank")
