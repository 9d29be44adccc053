"""Everything the rules may cite, and nothing else: facts, never opinions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.audit import AuditFinding
from megatron_nanguard.records.device import RankDevice
from megatron_nanguard.records.health import DeviceHealth
from megatron_nanguard.records.incident import Infected, MicrobatchLosses, Origin
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.records.replay import CameBack, PassLabel, ReplayPass

Outcome = Literal["finite", "bad", "not_tried"]


@dataclass(frozen=True)
class ScalerFacts:
    """The dynamic loss scale of fp16.

    Attributes:
        scale: of the step.
        in_search: no step was applied yet: the scale is still being searched for.
        just_raised: the scale went up, and no step was applied at it yet.
        skips_in_a_row: skips up to now, this one not counted.
        lower_scale: the replay at a far lower scale.
    """

    scale: float
    in_search: bool = False
    just_raised: bool = False
    skips_in_a_row: int = 0
    lower_scale: Outcome = "not_tried"


@dataclass(frozen=True)
class EarlierIncident:
    """An incident of the same run, earlier attempts included.

    Attributes:
        step: as the training log counts it.
        ranks: those with an origin; those bad before the reduction where no origin is known.
        module: of the first origin; empty when unknown.
        operator: of the first origin; empty when unknown.
        attempt: run it was in; empty when it was in this one.
        devices: where these ranks computed, as far as that is known.
    """

    step: int
    ranks: tuple[int, ...]
    module: str = ""
    operator: str = ""
    attempt: str = ""
    devices: tuple[RankDevice, ...] = ()


@dataclass(frozen=True)
class Spot:
    """A micro-batch on a rank."""

    rank: int
    microbatch: int


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One incident as the rules see it; what is not known is empty.

    Attributes:
        step: as the training log counts it.
        kind: where the non-finite values were met first.
        ranks: all ranks by what happened to them.
        origins: where it began, earliest first.
        infected: who was infected, and by what.
        losses: the losses of the step.
        passes: the replays, in the order they were made.
        exact: the plain replay was bit-equal; null without one.
        finite_exact: what was finite in both is bit-equal; null where that was not compared.
        only_losses: ranks of which the losses alone could be compared so.
        audited: weights, moments, buffers and batch were looked at before the replay.
        audit: what was bad already.
        arbitrations: accused calls that were run again.
        health: the hardware of accused ranks, of those with something new, and of a healthy peer.
        scaler: the loss scale; null without a dynamic one.
        earlier: earlier incidents of the run, and of earlier attempts of the same job.
        devices: where the accused ranks computed.
        num_hosts: hosts of the run; 0 when unknown.
        backend: what it computes with: "cuda", "npu" or "cpu"; empty when unknown.
        batch_changed: micro-batches whose data changed after they were fetched.
        zero_tokens: micro-batches with no token that the loss counts.
        previous_batch: the previous step's batch on this state.
        grad_norm: the norm the host computed; null before it did.
        clip_coefficient: the factor the host would clip with; null before it computed one.
        own_faults: ranks on which a part of the guard failed.
        overflow_mode: of the devices; "saturation" makes every check blind.
        host_options: values of the host's options that bear on the next experiment, as text, as far as they are known.
    """

    step: int
    kind: Kind
    ranks: RankSets
    origins: tuple[Origin, ...] = ()
    infected: tuple[Infected, ...] = ()
    losses: tuple[MicrobatchLosses, ...] = ()
    passes: tuple[ReplayPass, ...] = ()
    exact: bool | None = None
    finite_exact: bool | None = None
    only_losses: tuple[int, ...] = ()
    audited: bool = False
    audit: tuple[AuditFinding, ...] = ()
    arbitrations: tuple[Arbitration, ...] = ()
    health: tuple[DeviceHealth, ...] = ()
    scaler: ScalerFacts | None = None
    earlier: tuple[EarlierIncident, ...] = ()
    devices: tuple[RankDevice, ...] = ()
    num_hosts: int = 0
    backend: str = ""
    batch_changed: tuple[Spot, ...] = ()
    zero_tokens: tuple[Spot, ...] = ()
    previous_batch: Outcome = "not_tried"
    grad_norm: float | None = None
    clip_coefficient: float | None = None
    own_faults: tuple[int, ...] = ()
    overflow_mode: str = "not_applicable"
    host_options: Mapping[str, str] = field(default_factory=dict)

    def came_back(self, label: PassLabel) -> CameBack | None:
        """Whether the fault came back in a labelled pass; None when there was none."""
        return next((each.came_back for each in self.passes if each.label == label), None)

    def went_away(self) -> bool:
        """Whether a replay was finite: the plain one, or a traced one after another that was not."""
        return self.came_back("plain") == "no" or self.wavers()

    def wavers(self) -> bool:
        """Whether of two traced replays, made alike, the first was bad and the second finite."""
        return self.came_back("traced") in ("yes", "partly") and self.came_back("probed") == "no"

    def audit_of(self, *kinds: str) -> tuple[AuditFinding, ...]:
        """The audit's findings on tensors of some kinds."""
        return tuple(finding for finding in self.audit if finding.kind in kinds)
