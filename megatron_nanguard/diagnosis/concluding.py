"""The last word on an incident: traces joined into an origin, evidence weighed into causes; in a run and offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from megatron_nanguard.diagnosis import verdict
from megatron_nanguard.diagnosis.advice import advise
from megatron_nanguard.diagnosis.clean import why_clean
from megatron_nanguard.diagnosis.evidence import EarlierIncident, Evidence, ScalerFacts, Spot
from megatron_nanguard.diagnosis.health import worth_telling
from megatron_nanguard.diagnosis.joining.join import join
from megatron_nanguard.diagnosis.onset import began_by
from megatron_nanguard.diagnosis.received import received_before
from megatron_nanguard.records.causes import Family, family_of
from megatron_nanguard.records.incident import SUMMARY, Incident
from megatron_nanguard.records.phrase import FOLLOWED, joined, phrases_of
from megatron_nanguard.records.trace import RankTrace


def conclude(
    incident: Incident,
    traces: Sequence[RankTrace],
    earlier: Sequence[Incident] = (),
    host_options: Mapping[str, str] | None = None,
) -> Incident:
    """Add origin, path of infection, ranked causes and advice to a merged incident.

    Args:
        incident: what the ranks said, merged.
        traces: of the ranks that traced the same pass; none when nothing was traced.
        earlier: the incidents before this one, of the run and of earlier attempts, in order.
        host_options: values of the options of the host that bear on the next experiment, as far as they are known.
    """
    incident = trace_back(incident, traces)
    incident = replace(incident, health=worth_telling(incident))
    incident = replace(incident, summary=_told_further(incident, received_before(incident), began_by(incident)))
    evidence = gather(incident, earlier, host_options)
    judged = replace(incident, causes=verdict(evidence), advice=advise(evidence))
    return replace(judged, phrases=incident.phrases | phrases_of(judged))


def _told_further(incident: Incident, *sentences: str) -> str:
    """The summary and what is known since; the step stays in front of all, so that a report can leave it out."""
    story = incident.summary.removeprefix(SUMMARY.format(step=incident.step, what=""))
    if not any(sentences):
        return incident.summary
    return SUMMARY.format(step=incident.step, what=joined(FOLLOWED, (story, *sentences)))


def trace_back(incident: Incident, traces: Sequence[RankTrace]) -> Incident:
    """Add origin and path of infection to a merged incident; nothing without a trace."""
    if not traces:
        return incident
    known = {trace.rank for trace in traces}
    joined = join(traces, [rank for rank in incident.ranks.everyone if rank not in known])
    return replace(
        incident,
        origin=joined.origins,
        infected=joined.infected or incident.infected,
        also_infected=joined.also_infected,
        notes=(*incident.notes, *joined.notes, *filter(None, [why_clean(incident.ranks.clean, joined)])),
    )


def gather(
    incident: Incident, earlier: Sequence[Incident] = (), host_options: Mapping[str, str] | None = None
) -> Evidence:
    """What of an incident the rules may cite."""
    return Evidence(
        step=incident.step,
        kind=incident.kind,
        ranks=incident.ranks,
        origins=incident.origin,
        infected=incident.infected,
        losses=incident.losses,
        passes=incident.replay.passes,
        exact=incident.replay.exact,
        finite_exact=incident.replay.finite_exact,
        only_losses=incident.replay.only_losses,
        audited=incident.audited,
        audit=incident.audit,
        arbitrations=incident.arbitrations,
        health=incident.health,
        scaler=_scaler(incident),
        earlier=tuple(_summed_up(one, incident) for one in earlier if _tells_something(one, incident)),
        devices=incident.accused_devices,
        num_hosts=incident.num_hosts,
        backend=next((device.backend for device in incident.devices), ""),
        host_options=dict(host_options or {}),
        previous_batch=incident.replay.previous_batch,
        batch_changed=tuple(Spot(one.rank, one.microbatch) for one in incident.changed_after_fetch),
        zero_tokens=tuple(Spot(one.rank, one.microbatch) for one in incident.zero_tokens),
        own_faults=incident.own_faults,
        grad_norm=incident.grad_norm,
        clip_coefficient=incident.clip_coefficient,
        overflow_mode=next((device.overflow_mode for device in incident.devices), "not_applicable"),
    )


def _scaler(incident: Incident) -> ScalerFacts | None:
    if incident.scaler is None or incident.loss_scale is None:
        return None
    scaler = incident.scaler
    return ScalerFacts(
        scale=incident.loss_scale,
        in_search=scaler.in_search,
        just_raised=scaler.just_raised,
        skips_in_a_row=scaler.skips_in_a_row,
        lower_scale=incident.replay.lower_scale,
    )


def _tells_something(earlier: Incident, incident: Incident) -> bool:
    """What was no chance tells nothing of another step; the same step in another attempt always does."""
    is_same_step = earlier.run_id != incident.run_id and earlier.step == incident.step
    return is_same_step or not earlier.causes or family_of(earlier.causes[0].cause) is not Family.VALUES


def _summed_up(earlier: Incident, incident: Incident) -> EarlierIncident:
    first = earlier.origin[0] if earlier.origin else None
    ranks = sorted({origin.rank for origin in earlier.origin}) or earlier.ranks.bad_before
    return EarlierIncident(
        step=earlier.step,
        ranks=tuple(ranks),
        module=first.module if first else "",
        operator=first.operator if first else "",
        attempt="" if earlier.run_id == incident.run_id else earlier.run_id,
        devices=tuple(device for device in earlier.accused_devices if device.rank in ranks),
    )
