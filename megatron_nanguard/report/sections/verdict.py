"""The verdict: where the fault began, its likeliest cause, what happened to the job, and what to do next.

Step 3: rank 5 (tp1pp1dp0, host node7) made the first NaN: log in decoder.layers.3.mlp, backward of micro-batch 2.
cause  numerics (very likely, 0.95), no other cause fits. Finite inputs leave the domain of a correct operator.
job    stopped on every rank with exit code 65, before any weight changed
next   open model.py:7
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.texts import meaning
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import Incident, Origin
from megatron_nanguard.records.phrase import FOLLOWED, joined, name_ranks, phrase
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.step.replay import ReplaySummary
from megatron_nanguard.records.trace import OriginKind, place_words
from megatron_nanguard.report.blocks import Block, Tone
from megatron_nanguard.report.formatting import counted, judged, pattern_words
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections.next_steps import is_running, screening, useful_reproduction, without_command

MADE: Final = phrase("Step {step}: {who} made the first {what}: {operator}{module}, {when}{others}.")
LEFT: Final = phrase(
    "Step {step}: {who} read memory that {operator}{module} had left unwritten{rows}, and got {what}: {when}{others}."
)
REGION: Final = phrase("Step {step}: {who} made the first {what}: {operator}{module}{result}, {when}{others}.")
SENTENCES: Final = {
    OriginKind.OUTSIDE: phrase(
        "Step {step}: {who} had {what} before the step began: {operator}, first read in {when}{others}."
    ),
    OriginKind.UNSEEN: phrase(
        "Step {step}: {who} has the first {what} that is known, and no operator that the tracer sees wrote it: "
        "{output}{others}."
    ),
    OriginKind.NEVER_WRITTEN: phrase(
        "Step {step}: {who} read memory that nothing had written, and got {what}: {operator}{module}, {when}{others}."
    ),
    OriginKind.COMMUNICATION: phrase(
        "Step {step}: {operator}{module} gave {who} {what} though every member sent finite values: "
        "{when}{line}{others}."
    ),
    OriginKind.SCALER: phrase(
        "Step {step}: the loss scale was too large, {who} overflowed to {what}: {operator}{module}, {when}{others}."
    ),
}
STOPPED: Final = phrase("stopped on every rank with exit code {code}, before any weight changed")
STOPPED_LATE: Final = phrase("stopped on every rank with exit code {code}, after the step had been applied")
JOB_STATES: Final = {
    "skip": phrase("goes on: this step was skipped, no weight changed"),
    "continue": phrase("goes on: this step was applied anyway, weights may hold NaN or Inf now"),
}
RESUME: Final = phrase("{state}; start again from the last checkpoint before step {step}{place}")


def describe(opened: OpenedIncident) -> Block:
    """Name the origin, or what is known instead of it; then the likeliest cause, the job, and what to do now."""
    incident = opened.incident
    notes: list[str] = []
    if not incident.origin:
        notes.append(phrase("Where it began is not known: {why}.", why=_why_unknown(incident.replay)))
    reproduce, screen = useful_reproduction(opened), screening(opened)
    if screen and not reproduce and is_running(incident):
        notes.append(phrase("Stop the job first, then:"))
    command = reproduce or screen
    return Block(
        phrase("Verdict"),
        text=(_origin(opened) if incident.origin else incident.summary,),
        rows=tuple(_conclusions(opened)),
        notes=tuple(notes),
        commands=(command,) if command else (),
        tone=Tone.WORST,
    )


def _why_unknown(replay: ReplaySummary) -> str:
    if not replay.done:
        return replay.why_not or phrase("the step was not run again")
    came_back = any(one.came_back != "no" for one in replay.passes)
    if came_back:
        return phrase("tracing back from the bad values found no origin")
    return phrase("the fault did not come back when the step was run again")


def _origin(opened: OpenedIncident) -> str:
    first, more = opened.incident.origin[0], len(opened.incident.origin) - 1
    sentence = SENTENCES.get(first.kind, MADE) if first.kind else MADE
    if origin_facts.is_region(first):
        sentence = REGION
    elif first.kind is OriginKind.NEVER_WRITTEN and origin_facts.names_region(first):
        sentence = LEFT
    return sentence.format(
        step=opened.incident.step,
        who=_who(opened, first),
        what=phrase("values out of range") if first.pattern == "finite" else pattern_words(first.pattern),
        operator=first.operator,
        output=first.output,
        result="" if not first.output or first.output.isdecimal() else phrase(", {output}", output=first.output),
        module=phrase(" in {module}", module=first.module) if first.module else "",
        rows=phrase(", {layout}", layout=first.facts.layout) if first.facts and first.facts.layout else "",
        when=place_words(first.phase, first.microbatch),
        line=phrase(", {line}", line=first.source_line) if first.source_line else "",
        others=phrase(", and {more} independent of it", more=counted(more, "more origin")) if more else "",
    )


def _who(opened: OpenedIncident, origin: Origin) -> str:
    if len(origin.ranks) > 1:
        return name_ranks(origin.ranks)
    row = opened.row(origin.rank)
    if row and row.host:
        return phrase("rank {rank} ({coords}, host {host})", rank=origin.rank, coords=origin.coords, host=row.host)
    return phrase("rank {rank} ({places})", rank=origin.rank, places=origin.coords)


def _conclusions(opened: OpenedIncident) -> Iterator[tuple[str, str]]:
    causes = opened.incident.causes
    if causes:
        yield phrase("cause"), _cause(opened.incident)
    yield phrase("job"), job_words(opened)
    if following := next((cause.next for cause in causes if cause.next), ""):
        yield phrase("next"), without_command(following) if useful_reproduction(opened) else following


def _cause(incident: Incident) -> str:
    """Name the likeliest cause with its meaning and the second one; name two candidates where it is undecided."""
    first, *others = incident.causes
    if first.cause != Cause.UNDECIDED:
        form = phrase("{cause}, ahead of {second}.") if others else phrase("{cause}, no other cause fits.")
        words = form.format(cause=judged(first), second=judged(others[0]) if others else "")
        return joined(FOLLOWED, (words, meaning(first.cause, incident.origin)))
    if not others:
        return phrase("undecided: no evidence for any cause")
    if len(others) == 1:
        return phrase("undecided: {first}, no other cause fits", first=judged(others[0]))
    return phrase("undecided: {first} or {second}", first=judged(others[0]), second=judged(others[1]))


def job_words(opened: OpenedIncident) -> str:
    """Say whether the job stopped or goes on, with which exit code, and from which checkpoint to resume."""
    state = _job_state(opened)
    if opened.incident.policy.action != "abort":
        return state
    if opened.fingerprint is None:
        return RESUME.format(state=state, step=opened.incident.step, place="")
    directory = opened.fingerprint.arguments.get("save", "None")
    if directory == "None":
        return phrase("{state}; no --save was given, so there is no checkpoint to start again from", state=state)
    return RESUME.format(state=state, step=opened.incident.step, place=phrase(", in {directory}", directory=directory))


def _job_state(opened: OpenedIncident) -> str:
    policy = opened.incident.policy
    if policy.action == "abort":
        state = STOPPED_LATE if opened.incident.kind is Kind.DEAD_STEP else STOPPED
        state = state.format(code=policy.exit_code)
    else:
        state = JOB_STATES.get(policy.action, phrase("not known: every rank ended before it could write what was done"))
    is_replaced = policy.action not in (policy.name, "unknown") and policy.words
    return phrase("{state} ({words})", state=state, words=policy.words.rstrip(".")) if is_replaced else state
