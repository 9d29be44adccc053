"""A place in the step as a sentence tells it: "backward of micro-batch 2"."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.records.phrase import Phrase, phrase

PHASES: Final[dict[str, Phrase]] = {
    "load": phrase("load"),
    "forward": phrase("forward"),
    "recompute": phrase("recompute"),
    "backward": phrase("backward"),
    "accumulate": phrase("accumulate"),
    "reduce": phrase("reduce"),
    "finalize": phrase("finalize"),
    "optimizer": phrase("optimizer"),
    "clip": phrase("clip"),
    "gather": phrase("gather"),
}


def phase_words(phase: str) -> str:
    """A phase by its code."""
    return PHASES.get(phase, phase)


def place_words(phase: str, microbatch: int | None) -> str:
    """A phase, and the micro-batch where it is of one."""
    words = phase_words(phase)
    if microbatch is None:
        return words
    return phrase("{phase} of micro-batch {microbatch}", phase=words, microbatch=microbatch)
