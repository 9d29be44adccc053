"""The last word on an incident: traces joined into an origin, evidence weighed into causes; in a run and offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megatron_nanguard.diagnosis import verdict
from megatron_nanguard.diagnosis.advice import advise
from megatron_nanguard.diagnosis.evidence import Evidence, ScalerFacts, Spot
from megatron_nanguard.diagnosis.join import join
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.trace import RankTrace


def conclude(incident: Incident, traces: Sequence[RankTrace]) -> Incident:
    """Add origin, path of infection, ranked causes and advice to a merged incident.

    Args:
        incident: what the ranks said, merged.
        traces: of the ranks that traced the same pass; none when nothing was traced.
    """
    known = {trace.rank for trace in traces}
    everyone = (*incident.ranks.bad_before, *incident.ranks.bad_after_only, *incident.ranks.clean)
    if traces:
        joined = join(traces, [rank for rank in everyone if rank not in known])
        incident = replace(
            incident,
            origin=joined.origins,
            infected=joined.infected or incident.infected,
            notes=(*incident.notes, *joined.notes),
        )
    evidence = gather(incident)
    return replace(incident, causes=verdict(evidence), advice=advise(evidence))


def gather(incident: Incident) -> Evidence:
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
        audited=incident.audited,
        audit=incident.audit,
        arbitrations=incident.arbitrations,
        scaler=None if incident.loss_scale is None else ScalerFacts(incident.loss_scale),
        batch_changed=tuple(Spot(one.rank, one.microbatch) for one in incident.changed_after_fetch),
        zero_tokens=tuple(Spot(one.rank, one.microbatch) for one in incident.zero_tokens),
        own_faults=incident.own_faults,
        grad_norm=incident.grad_norm,
        clip_coefficient=incident.clip_coefficient,
        overflow_mode=next((device.overflow_mode for device in incident.devices), "not_applicable"),
    )
