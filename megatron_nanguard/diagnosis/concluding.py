"""The last word on an incident: traces joined into an origin, evidence weighed into causes; in a run and offline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from megatron_nanguard.diagnosis import verdict
from megatron_nanguard.diagnosis.advice import advise
from megatron_nanguard.diagnosis.evidence import EarlierIncident, Evidence, ScalerFacts, Spot
from megatron_nanguard.diagnosis.join import join
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.trace import RankTrace

EXPLAINED = frozenset({"data", "loss_or_mask", "numerics", "state_corruption", "loss_scaling", "norm_overflow"})
"""An earlier incident with one of these causes was no chance, and tells nothing of the next one."""


def conclude(
    incident: Incident,
    traces: Sequence[RankTrace],
    earlier: Sequence[Incident] = (),
    host_options: Iterable[str] = (),
) -> Incident:
    """Add origin, path of infection, ranked causes and advice to a merged incident.

    Args:
        incident: what the ranks said, merged.
        traces: of the ranks that traced the same pass; none when nothing was traced.
        earlier: the incidents of the run before this one, in order.
        host_options: options of the host that are on and bear on the next experiment.
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
    evidence = gather(incident, earlier, host_options)
    return replace(incident, causes=verdict(evidence), advice=advise(evidence))


def gather(incident: Incident, earlier: Sequence[Incident] = (), host_options: Iterable[str] = ()) -> Evidence:
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
        scaler=_scaler(incident),
        earlier=tuple(_summed_up(one) for one in earlier if not one.causes or one.causes[0].cause not in EXPLAINED),
        host_options=frozenset(host_options),
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


def _summed_up(incident: Incident) -> EarlierIncident:
    if not incident.origin:
        return EarlierIncident(incident.step, incident.ranks.bad_before)
    first = incident.origin[0]
    ranks = sorted({origin.rank for origin in incident.origin})
    return EarlierIncident(incident.step, tuple(ranks), first.module, first.operator)
