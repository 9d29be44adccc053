"""The merged view of one incident over all ranks: the content of `incident.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.coordinates import ParallelSizes, RankGroup
from megatron_nanguard.records.machine.device import RankDevice
from megatron_nanguard.records.machine.health import DeviceHealth
from megatron_nanguard.records.phrase import Phrasing, phrase
from megatron_nanguard.records.postmortem import Kind, RankSets, ScalerState
from megatron_nanguard.records.step.replay import AuditFinding, ReplaySummary
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.records.trace import OriginKind, Pattern, TensorFacts

SUMMARY: Final = phrase("Step {step}: {what}")
"""How the summary of every incident begins."""


@dataclass(frozen=True)
class Origin:
    """Where the walk back from a bad gradient, loss or weight ends.

    Attributes:
        rank: global rank.
        coords: its place, such as "tp1pp1dp0".
        microbatch: zero-based micro-batch; null outside of any.
        phase: load, forward, recompute, backward, accumulate, reduce, finalize, optimizer, clip or gather.
        module: global module name.
        operator: the operator call.
        output: which of its outputs.
        pattern: what was seen in the output.
        source_line: file and line that called it; null when unknown.
        positions: first bad positions in the output.
        kind: what the walk ended at; null where no trace was made.
        facts: the bad output, with counts; null where it was not looked at.
        inputs: every tensor it read, and the plain numbers among its arguments that are NaN or Inf; empty where nothing
            of what went in was recorded.
        forward_operator: the forward operator that made a backward node; null when unknown.
        function_line: `file:line in Class.backward` of the autograd.Function whose backward ran; null where none did.
        ranks: the ranks that share the origin, ascending: the members of a collective that spoiled its result.
        times: how many events like this one there were on the rank.
        path: from here towards the gradient.
        not_seen: names of arguments of a region that could not be looked at.
    """

    rank: int
    coords: str
    microbatch: int | None
    phase: str
    module: str
    operator: str
    output: str
    pattern: Pattern
    source_line: str | None
    positions: tuple[tuple[int, ...], ...]
    kind: OriginKind | None = None
    facts: TensorFacts | None = None
    inputs: tuple[TensorFacts, ...] = ()
    forward_operator: str | None = None
    function_line: str | None = None
    ranks: tuple[int, ...] = ()
    times: int = 1
    path: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the origin, ascending: its own, and those that share it."""
        return tuple(sorted({self.rank, *self.ranks}))


@dataclass(frozen=True)
class Infected:
    """A rank that went bad through communication alone.

    Attributes:
        rank: global rank.
        by: the communication that carried it, such as "PP recv from rank 5" or "DP gradient all-reduce".
        group: the group it went through, in words.
        from_ranks: the ranks of that group that were bad before; `from` in the file.
        first_used: what would have used the bad values first; null when unknown.
        call: the operator and its running number on the channel, such as "allreduce_ no. 39"; empty where not traced.
        gradients: those that it alone made bad, the first of many; empty for the first communication of a rank.
    """

    rank: int
    by: str
    group: str
    from_ranks: tuple[int, ...] = field(metadata={"key": "from"})
    first_used: str | None = None
    call: str = ""
    gradients: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchSpot:
    """A micro-batch on a rank.

    Attributes:
        rank: global rank.
        microbatch: zero-based.
    """

    rank: int
    microbatch: int


@dataclass(frozen=True)
class MergedParameter:
    """One parameter, over all ranks that saw it bad.

    Attributes:
        name: global name.
        where: "local" before the reduction, "reduced" after it.
        pattern: what was seen, over all ranks.
        norm: the worst norm: NaN before Inf before the largest.
        nan_count: NaN elements over all ranks that could count; null when none could.
        inf_count: Inf elements over all ranks that could count; null when none could.
        ranks: the ranks, ascending; the first of them when there are many.
        num_ranks: how many ranks.
        coords: the places of `ranks`, in the same order.
    """

    name: str
    where: Literal["local", "reduced"]
    pattern: Pattern
    norm: float | None
    nan_count: int | None
    inf_count: int | None
    ranks: tuple[int, ...]
    num_ranks: int
    coords: tuple[str, ...]


@dataclass(frozen=True)
class MicrobatchLosses:
    """The losses of one micro-batch index over all ranks that compute a loss.

    Attributes:
        index: zero-based position in the step.
        num_ranks: ranks that gave a loss.
        lowest: smallest finite loss; null when none is finite.
        highest: largest finite loss; null when none is finite.
        nonfinite_ranks: ranks whose loss was NaN or Inf.
    """

    index: int
    num_ranks: int
    lowest: float | None
    highest: float | None
    nonfinite_ranks: tuple[int, ...]


@dataclass(frozen=True)
class DeviceCount:
    """Equal devices of the run.

    Attributes:
        backend: "cuda", "npu" or "cpu".
        name: product name.
        overflow_mode: as in the post-mortem of a rank.
        num_ranks: how many ranks compute on such a device.
    """

    backend: str
    name: str
    overflow_mode: str
    num_ranks: int


@dataclass(frozen=True)
class PolicyOutcome:
    """What was done about the incident.

    Attributes:
        name: the policy asked for: abort, skip or continue.
        action: what happened: the same, or another where the policy had to give way.
        exit_code: the code all ranks left with; null when training went on.
        words: one sentence for a person.
    """

    name: str
    action: str
    exit_code: int | None
    words: str


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One incident over all ranks.

    Attributes:
        schema_version: form of this file.
        run_id: name of the run.
        step: step as the training log counts it, first step 1.
        kind: where the non-finite values were met first.
        summary: one or two sentences.
        ranks: all ranks by what happened to them.
        sizes: the parallel layout.
        groups: the failing set, before the reduction, as products of parallel axes.
        infected_groups: the infected set in the same form.
        origin: where it began, earliest first; empty until a replay found it.
        infected: who was infected, and by what.
        also_infected: further communications that made gradients bad on ranks that were bad already, such as those of
            tied embeddings.
        causes: ranked explanations.
        advice: the patterns that were recognised, by their name in the advice texts.
        replay: whether the step was run again.
        audited: weights, moments, buffers and batch were looked at before any operator was blamed.
        audit: what of them was bad already.
        changed_after_fetch: micro-batches whose data is no longer what the data iterator handed out.
        zero_tokens: micro-batches with no token that the loss counts.
        own_faults: ranks on which a part of the guard failed.
        arbitrations: suspect calls that were run again.
        health: the hardware of the ranks where it began, of those with something new to tell, and of a healthy peer.
        parameters: the bad parameters, before the reduction first.
        parameters_truncated: bad parameters left out of the list.
        losses: the losses of the step by micro-batch.
        loss_scale: factor on the loss; null without one.
        scaler: the scaler that adjusts it; null where none does.
        grad_norm: the norm Megatron computed; null before it did.
        clip_coefficient: the factor Megatron would clip with; null before it computed one.
        policy: what was done.
        devices: the devices of the run, equal ones counted.
        num_hosts: hosts of the run; 0 when unknown.
        accused_devices: where the ranks computed that were bad before the reduction, or only after it where none was.
        files: the files of the ranks, relative to this one.
        missing_ranks: ranks of the exchange, or of the run where it did not come to one, that wrote no readable file.
        versions: versions of the packages that matter.
        notes: what else a reader should know.
        phrases: how texts of this file were put together, by text; a report in another language needs it.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    step: int
    kind: Kind
    summary: str
    ranks: RankSets
    sizes: ParallelSizes
    groups: tuple[RankGroup, ...]
    infected_groups: tuple[RankGroup, ...]
    origin: tuple[Origin, ...] = ()
    infected: tuple[Infected, ...] = ()
    also_infected: tuple[Infected, ...] = ()
    causes: tuple[RankedCause, ...] = ()
    advice: tuple[str, ...] = ()
    replay: ReplaySummary = field(default_factory=ReplaySummary)
    audited: bool = False
    audit: tuple[AuditFinding, ...] = ()
    changed_after_fetch: tuple[BatchSpot, ...] = ()
    zero_tokens: tuple[BatchSpot, ...] = ()
    own_faults: tuple[int, ...] = ()
    arbitrations: tuple[Arbitration, ...] = ()
    health: tuple[DeviceHealth, ...] = ()
    parameters: tuple[MergedParameter, ...] = ()
    parameters_truncated: int = 0
    losses: tuple[MicrobatchLosses, ...] = ()
    loss_scale: float | None = None
    scaler: ScalerState | None = None
    grad_norm: float | None = None
    clip_coefficient: float | None = None
    policy: PolicyOutcome
    devices: tuple[DeviceCount, ...] = ()
    num_hosts: int = 0
    accused_devices: tuple[RankDevice, ...] = ()
    files: tuple[str, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    phrases: dict[str, Phrasing] = field(default_factory=dict)

    @property
    def origin_ranks(self) -> frozenset[int]:
        """The ranks where it began; empty where no origin is known."""
        return frozenset(rank for origin in self.origin for rank in origin.members)

    @property
    def suspect_ranks(self) -> frozenset[int]:
        """The ranks where it began; those that were bad before the reduction where no origin is known."""
        return self.origin_ranks or frozenset(self.ranks.bad_before)
