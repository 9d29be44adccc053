"""The step again: every pass, what came of it, and how true the first one was to what had happened.

pass                   result     what it asks
plain                  bad again  The same call and nothing else: does the fault come back?
traced, micro-batch 2  bad again  Every operator is read along: where does it begin?
"""

from __future__ import annotations

import re
from typing import Final

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.records.replay import ReplaySummary
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident

COLUMNS: Final = (phrase("pass"), phrase("result"), phrase("seconds"), phrase("what it asks"))
TIMED: Final = re.compile(r"(?P<name>(?P<kind>[^,]+).*): (?P<seconds>[\d.]+) s")
"""A pass among the stages, such as "traced, micro-batch 2: 0.90 s"."""

LOWER_SCALE: Final = "loss scale / 256"
QUESTIONS: Final = {
    "plain": phrase("The same call and nothing else: does the fault come back?"),
    "traced": phrase("Every operator is read along: where does it begin?"),
    "probed": phrase("A closer look at what the traced pass found."),
    "synchronous": phrase("Waiting after every operator: is it a race?"),
    "marker fill": phrase("Fresh memory filled with a marker: is memory read that nobody wrote?"),
    "previous batch": phrase("The batch of the step before on this state: is it the batch?"),
    LOWER_SCALE: phrase("The same step far below its loss scale: is it the scale that overflows?"),
}
RESULTS: Final = {
    "yes": phrase("bad again"),
    "no": phrase("finite"),
    "partly": phrase("bad on other ranks"),
    "bad": phrase("bad"),
    "finite": phrase("finite"),
}
PREVIOUS_BATCH: Final = {
    "bad": phrase("bad too: not this batch alone"),
    "finite": phrase("finite: look at this batch"),
}
EXACT: Final = phrase("The plain pass was the same as what had happened, bit for bit.")
FINITE_EXACT: Final = phrase("The plain pass differs in its bits; whatever is finite in both is the same bit for bit.")
HEALED: Final = phrase("In the plain pass NaN and Inf of {ranks} became finite; all else is the same bit for bit.")
ONLY_LOSSES: Final = phrase(
    "Of {ranks} no gradient was finite before, so that of theirs only the losses were compared."
)
DIFFERENT: Final = phrase("The plain pass differs in its bits, also where both are finite.")
NOT_EXACT: Final = phrase("The plain pass differs in its bits from what had happened.")


def describe(opened: OpenedIncident) -> Block | None:
    """The passes in order; a replay that was not done is told among the notes."""
    replay = opened.incident.replay
    if not replay.done:
        return None
    timed = [found for stage in replay.stages if (found := TIMED.fullmatch(stage))]
    return Block(
        phrase("The step run again"),
        text=tuple(filter(None, (_exactness(opened.incident), _only_losses(replay)))),
        columns=COLUMNS if timed else (),
        rows=tuple(_row(replay, found) for found in timed),
        notes=tuple(stage for stage in replay.stages if not TIMED.fullmatch(stage)),
    )


def _exactness(incident: Incident) -> str:
    replay, ranks = incident.replay, incident.ranks
    if replay.exact is None:
        return ""
    if replay.exact:
        return EXACT
    bad = ranks.bad_before or ranks.bad_after_only
    if bad and replay.finite_exact and all(one.came_back == "no" for one in replay.passes if one.label == "plain"):
        return HEALED.format(ranks=name_ranks(bad))
    return {True: FINITE_EXACT, False: DIFFERENT, None: NOT_EXACT}[replay.finite_exact]


def _only_losses(replay: ReplaySummary) -> str:
    return ONLY_LOSSES.format(ranks=name_ranks(replay.only_losses)) if replay.only_losses else ""


def _row(replay: ReplaySummary, found: re.Match[str]) -> tuple[str, ...]:
    kind = found["kind"]
    return found["name"], _result(replay, kind), found["seconds"], QUESTIONS.get(kind, "")


def _result(replay: ReplaySummary, kind: str) -> str:
    if kind == "previous batch":
        return PREVIOUS_BATCH.get(replay.previous_batch, "-")
    results: dict[str, str] = {
        **{one.label: one.came_back for one in replay.passes},
        LOWER_SCALE: replay.lower_scale,
    }
    return RESULTS.get(results.get(kind.removesuffix(" fill"), ""), "-")
