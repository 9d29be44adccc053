"""Why the other ranks are clean: what the bad values never reached."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from megatron_nanguard.diagnosis.joining.join import Joined
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks

NOTHING_CAME: Final = phrase("clean: {clean}; no communication that was traced brought a bad value there")
ONLY_GRADIENTS: Final = phrase(
    "clean: {clean}; the bad values reached gradients of weights alone, which are summed up over {reached} only, "
    "and no value that goes through the pipeline"
)


def why_clean(clean: Collection[int], joined: Joined) -> str:
    """One sentence on the ranks that are clean; empty where it is not known, or none is.

    Args:
        clean: ranks without any bad value, as the exchange told.
        joined: what the traces tell together.
    """
    untouched = sorted(set(clean) & set(joined.untouched))
    if not joined.origins or not untouched:
        return ""
    began = {rank for origin in joined.origins for rank in origin.members}
    reached = sorted(began | {one.rank for one in joined.infected})
    words = ONLY_GRADIENTS if joined.only_gradients else NOTHING_CAME
    return words.format(clean=name_ranks(untouched), reached=name_ranks(reached))
