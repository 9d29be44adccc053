"""From merged incident and traces to a verdict: the origin, the path of infection, ranked causes and advice.

    concluded = conclude(merged, traces, earlier, host_options)

The run does it at the end of an incident, `nanguard report` where a file holds no verdict yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from megatron_nanguard.diagnosis.advice import advise
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.health import relevant_health
from megatron_nanguard.diagnosis.history import bears_on
from megatron_nanguard.diagnosis.joining.join import Joined, join
from megatron_nanguard.diagnosis.verdict import verdict
from megatron_nanguard.records.incident import SUMMARY, Incident
from megatron_nanguard.records.phrase import FOLLOWED, Phrase, joined, name_ranks, opening, phrase, phrases_of
from megatron_nanguard.records.trace import RankTrace


def conclude(
    incident: Incident,
    traces: Sequence[RankTrace],
    earlier: Sequence[Incident] = (),
    host_options: Mapping[str, str] | None = None,
) -> Incident:
    """Add origin, path of infection, ranked causes and advice to a merged incident.

    Args:
        incident: the files of all ranks, merged.
        traces: of the ranks that traced the same pass; none when nothing was traced.
        earlier: the incidents before this one, of the run and of earlier attempts, oldest first.
        host_options: values of Megatron's options that bear on the next experiment, as far as they are known.
    """
    incident = trace_back(incident, traces)
    incident = replace(incident, health=relevant_health(incident))
    incident = replace(incident, summary=_extended_summary(incident))
    case = Case(incident, tuple(one for one in earlier if bears_on(one, incident)), dict(host_options or {}))
    judged = replace(incident, causes=verdict(case), advice=advise(case))
    return replace(judged, phrases=incident.phrases | phrases_of(judged))


def trace_back(incident: Incident, traces: Sequence[RankTrace]) -> Incident:
    """Add origin and path of infection to a merged incident; nothing without a trace."""
    if not traces:
        return incident
    known = {trace.rank for trace in traces}
    found = join(traces, [rank for rank in incident.ranks.everyone if rank not in known])
    return replace(
        incident,
        origin=found.origins,
        infected=found.infected or incident.infected,
        also_infected=found.also_infected,
        notes=(*incident.notes, *found.notes, *filter(None, [_why_clean(incident, found)])),
    )


def _why_clean(incident: Incident, found: Joined) -> str:
    """Why no bad value reached the clean ranks; empty where that is not known, or no rank is clean."""
    untouched = sorted(set(incident.ranks.clean) & set(found.untouched))
    if not found.origins or not untouched:
        return ""
    if not found.only_gradients:
        return phrase(
            "clean: {clean}; no communication that was traced brought a bad value there", clean=name_ranks(untouched)
        )
    began = {rank for origin in found.origins for rank in origin.members}
    return phrase(
        "clean: {clean}; the bad values reached gradients of weights alone, which are summed up over {reached} only, "
        "and no value that goes through the pipeline",
        clean=name_ranks(untouched),
        reached=name_ranks(sorted(began | {one.rank for one in found.infected})),
    )


def _extended_summary(incident: Incident) -> str:
    """The summary and what is known since. The step stays in front, so that a report can leave it out."""
    further = [sentence for sentence in (_received_before(incident), _began_by(incident)) if sentence]
    if not further:
        return incident.summary
    story = incident.summary.removeprefix(SUMMARY.format(step=incident.step, what=""))
    return SUMMARY.format(step=incident.step, what=joined(FOLLOWED, (story, *further)))


def _received_before(incident: Incident) -> str:
    """Which ranks were bad before the reduction only because other ranks had sent them bad values."""
    sent = {infected.rank for infected in incident.infected if infected.from_ranks}
    ranks = sorted((sent & set(incident.ranks.bad_before)) - incident.origin_ranks)
    if not incident.origin or not ranks:
        return ""
    return phrase("{who} received bad values before it, by other communication.", who=opening(name_ranks(ranks)))


def _began_by(incident: Incident) -> str:
    """Where no operator is known: a loss that was not finite shows that it began by the end of that forward."""
    bad = next((losses for losses in incident.losses if losses.nonfinite_ranks), None)
    if incident.origin or bad is None:
        return ""
    return phrase(
        "The loss of micro-batch {microbatch} was NaN or Inf on {who}, so it began by the end of that forward; "
        "the operator is not known{why}.",
        microbatch=bad.index,
        who=name_ranks(bad.nonfinite_ranks),
        why=_why_unknown(incident),
    )


def _why_unknown(incident: Incident) -> str | Phrase:
    if not incident.replay.done:
        return phrase(": the step was not run again")
    came_back = any(each.came_back != "no" for each in incident.replay.passes)
    return "" if came_back else phrase(": the replay was clean")
