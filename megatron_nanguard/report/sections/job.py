"""What became of the job: what a person on call asks first."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.report.opened_incident import OpenedIncident

STOPPED: Final = phrase("stopped on every rank with exit code {code}, before any weight changed")
STOPPED_LATE: Final = phrase("stopped on every rank with exit code {code}, after the step had been applied")
STATES: Final = {
    "skip": phrase("goes on: this step was skipped, no weight changed"),
    "continue": phrase("goes on: this step was applied all the same, weights may hold NaN or Inf now"),
}
NOT_KNOWN: Final = phrase("not known: no rank lived to write what was done")
GAVE_WAY: Final = phrase("{state} ({words})")
RESUME: Final = phrase("{state}; start again from the last checkpoint before step {step}{place}")
PLACE: Final = phrase(", in {directory}")
NO_CHECKPOINT: Final = phrase("{state}; no --save was given, so there is no checkpoint to start again from")


def job_words(opened: OpenedIncident) -> str:
    """Whether the job stopped or goes on, with its exit code, and where to start again."""
    state = _state(opened)
    if opened.incident.policy.action != "abort":
        return state
    if opened.fingerprint is None:
        return RESUME.format(state=state, step=opened.incident.step, place="")
    directory = opened.fingerprint.arguments.get("save", "None")
    if directory == "None":
        return NO_CHECKPOINT.format(state=state)
    return RESUME.format(state=state, step=opened.incident.step, place=PLACE.format(directory=directory))


def _state(opened: OpenedIncident) -> str:
    policy = opened.incident.policy
    if policy.action == "abort":
        state = STOPPED_LATE if opened.incident.kind is Kind.DEAD_STEP else STOPPED
        state = state.format(code=policy.exit_code)
    else:
        state = STATES.get(policy.action, NOT_KNOWN)
    gave_way = policy.action not in (policy.name, "unknown") and policy.words
    return GAVE_WAY.format(state=state, words=policy.words.rstrip(".")) if gave_way else state
