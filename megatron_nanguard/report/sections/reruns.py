"""What was run again: the whole step in several passes, and the suspect call alone.

pass                   result     what it asks
plain                  bad again  The same call and nothing else: does the fault come back?
traced, micro-batch 2  bad again  Every operator is read along: where does it begin?
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from megatron_nanguard.diagnosis.suspect_call import conclusion, name_call
from megatron_nanguard.records.incident import Incident, Origin
from megatron_nanguard.records.phrase import LISTED, joined, name_ranks, phrase
from megatron_nanguard.records.step.replay import ReplaySummary
from megatron_nanguard.records.suspect_call import BAD, NOT_TRIED, Arbitration
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident

COLUMNS: Final = (phrase("pass"), phrase("result"), phrase("seconds"), phrase("what it asks"))
TIMED: Final = re.compile(r"(?P<name>(?P<kind>[^,]+).*): (?P<seconds>[\d.]+) s")
"""A stage of the replay that is a pass, such as "traced, micro-batch 2: 0.90 s"."""

LOWER_SCALE: Final = "loss scale / 256"
QUESTIONS: Final = {
    "plain": phrase("The same step without tracing: does the fault come back?"),
    "traced": phrase("Every operator is checked: where does the fault begin?"),
    "probed": phrase("A closer look at what the traced pass found."),
    "synchronous": phrase("The device is awaited after every operator: is it a race?"),
    "marker fill": phrase("New memory is filled with a marker: is memory read that was never written?"),
    "previous batch": phrase("The batch of the previous step on this state: is the batch the cause?"),
    LOWER_SCALE: phrase("The same step at a much lower loss scale: does the scale make it overflow?"),
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
FINITE_EXACT: Final = phrase(
    "The plain pass differs from the step, but all values that are finite in both are equal bit for bit."
)
HEALED: Final = phrase(
    "In the plain pass the NaN and Inf of {ranks} became finite; everything else is equal bit for bit."
)
ONLY_LOSSES: Final = phrase("No gradient of {ranks} was finite in the step, so only their losses were compared.")
DIFFERENT: Final = phrase("The plain pass differs from the step, also in values that are finite in both.")
SHOWN_CALLS: Final = 3
FINITE: Final = phrase("finite")
OUT_OF_RANGE: Final = phrase("{outcome}, beyond the range of the type it is stored in")


def describe_replay(opened: OpenedIncident) -> Block | None:
    """Show the passes over the step in their order; the notes say why a replay was not done."""
    replay = opened.incident.replay
    if not replay.done:
        return None
    only_losses = ONLY_LOSSES.format(ranks=name_ranks(replay.only_losses)) if replay.only_losses else ""
    timed = [found for stage in replay.stages if (found := TIMED.fullmatch(stage))]
    return Block(
        phrase("The step run again"),
        text=tuple(filter(None, (_exactness(opened.incident), only_losses))),
        columns=COLUMNS if timed else (),
        rows=tuple(_row(replay, found) for found in timed),
        notes=tuple(stage for stage in replay.stages if not TIMED.fullmatch(stage)),
    )


def describe_suspect_call(opened: OpenedIncident) -> Block | None:
    """Show every run of the first three suspect calls, and what the runs of a call prove together."""
    calls = opened.incident.arbitrations
    if not calls:
        return None
    more = len(calls) - SHOWN_CALLS
    return Block(
        phrase("The suspect call, run again on its own"),
        rows=tuple(row for call in calls[:SHOWN_CALLS] for row in _call_rows(call, opened.incident.origin)),
        notes=(phrase("... and {more} more calls", more=more),) if more > 0 else (),
    )


def _exactness(incident: Incident) -> str:
    replay, ranks = incident.replay, incident.ranks
    if replay.exact is None:
        return ""
    if replay.exact:
        return phrase("The plain pass repeated the step bit for bit.")
    bad = ranks.bad_before or ranks.bad_after_only
    if bad and replay.finite_exact and all(one.came_back == "no" for one in replay.passes if one.label == "plain"):
        return HEALED.format(ranks=name_ranks(bad))
    if replay.finite_exact is None:
        return phrase("The plain pass differs from the step.")
    return FINITE_EXACT if replay.finite_exact else DIFFERENT


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


def _call_rows(call: Arbitration, origins: Sequence[Origin]) -> Iterator[tuple[str, str]]:
    yield phrase("call"), joined(LISTED, (name_call(call), call.module))
    if call.repeats:
        outcome: str = phrase("NaN or Inf in {bad} of {repeats} runs", bad=call.repeats_bad, repeats=call.repeats)
        if call.zero_filled:
            filled = phrase(
                "in {bad} of the {number} with fresh memory filled with zeros first",
                bad=call.zero_filled_bad,
                number=call.zero_filled,
            )
            outcome = joined(LISTED, (outcome, filled))
        yield phrase("same device"), outcome
    if call.peer != NOT_TRIED:
        yield phrase("another device"), _peer(call)
    by = call.reference if call.reference not in ("", "aten") else ""
    if call.reference_fp32 != NOT_TRIED:
        yield phrase("float32 on CPU"), _by(_outcome(call.reference_fp32), by)
    if call.reference_fp64 != NOT_TRIED:
        outcome = _by(_outcome(call.reference_fp64), by)
        yield phrase("float64 on CPU"), OUT_OF_RANGE.format(outcome=outcome) if call.out_of_range else outcome
    if call.note:
        yield phrase("note"), call.note
    yield phrase("conclusion"), conclusion(call, origins)


def _peer(call: Arbitration) -> str:
    outcome = _outcome(call.peer)
    if call.peer_rank is None:
        return outcome
    alike = phrase(", the same model on the same host") if call.peer_is_alike else ""
    return phrase(
        "{outcome} on rank {rank} ({device}{alike})",
        outcome=outcome,
        rank=call.peer_rank,
        device=call.peer_device,
        alike=alike,
    )


def _outcome(outcome: str) -> str:
    return phrase("NaN or Inf") if outcome == BAD else FINITE if outcome == FINITE else outcome


def _by(outcome: str, reference: str) -> str:
    return phrase("{outcome} ({reference})", outcome=outcome, reference=reference) if reference else outcome
