"""What one rank knows of one incident: the content of `rank00005_tp1pp1dp0.json`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes, RankGroup
from megatron_nanguard.records.machine.device import DeviceFacts
from megatron_nanguard.records.machine.health import DeviceHealth
from megatron_nanguard.records.phrase import Phrasing
from megatron_nanguard.records.step.replay import AuditFinding, ReplaySummary
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.records.trace import Pattern


class Kind(enum.Enum):
    """Where the non-finite values were met first.

    Attributes:
        GRADIENT_BEFORE_REDUCTION: a rank's own gradient was bad before the data-parallel reduction.
        GRADIENT_AFTER_REDUCTION: every local gradient was finite; what the optimizer would consume was not.
        LOSS: the loss of a micro-batch was not finite, and every gradient was.
        NORM_OVERFLOW: all elements are finite; only the sum of their squares is not.
        DEAD_STEP: a step was applied though not finite; it showed in the norm alone, after the vote.
    """

    GRADIENT_BEFORE_REDUCTION = "gradient_before_reduction"
    GRADIENT_AFTER_REDUCTION = "gradient_after_reduction"
    LOSS = "loss"
    NORM_OVERFLOW = "norm_overflow"
    DEAD_STEP = "dead_step"


@dataclass(frozen=True)
class Microbatch:
    """One forward and backward inside the step.

    Attributes:
        index: zero-based position in the step.
        loss: its loss; null on a rank that computes none.
        num_tokens: tokens the loss counts; null when unknown.
    """

    index: int
    loss: float | None
    num_tokens: int | None


@dataclass(frozen=True)
class BadParameter:
    """One parameter whose gradient is not what it should be.

    Attributes:
        name: global name.
        local_name: the name inside this rank's model chunk.
        shape: shape of this rank's part.
        norm: norm of the gradient.
        pattern: what was seen; "finite" when only the norm overflows.
        nan_count: NaN elements; null when the values no longer exist.
        inf_count: Inf elements of either sign; null when the values no longer exist.
        counted_elements: how many elements the counts are about; null when the values no longer exist.
        first_index: position of the first bad element in the parameter's own shape.
    """

    name: str
    local_name: str
    shape: tuple[int, ...]
    norm: float | None
    pattern: Pattern
    nan_count: int | None
    inf_count: int | None
    counted_elements: int | None
    first_index: tuple[int, ...] | None


@dataclass(frozen=True)
class LocalGradients:
    """This rank's own gradients, before the data-parallel reduction.

    Attributes:
        norm: norm over all of them; null when it was not taken.
        parameters: the bad ones.
        by_layer: number of bad parameters per layer.
        truncated: bad parameters left out of the list to keep the file small.
        norm_by_layer: norm of every layer of this rank, in forward order, to six digits; null for a layer whose
            gradients were not looked at. Empty when one norm per bucket was taken; every n-th layer where the file had
            to be small.
    """

    norm: float | None
    parameters: tuple[BadParameter, ...]
    by_layer: dict[str, int]
    truncated: int
    norm_by_layer: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ReducedState:
    """What the optimizer would have consumed on this rank: the reduced buffer, or its shard of it.

    Attributes:
        norm: norm over all pieces; null when it was not taken.
        pieces: contiguous pieces that were looked at.
        parameters: the bad ones.
        truncated: bad parameters left out of the list to keep the file small.
    """

    norm: float | None
    pieces: int
    parameters: tuple[BadParameter, ...]
    truncated: int


@dataclass(frozen=True)
class RngDigests:
    """Short digests of the random states at the start of the step.

    Attributes:
        python: state of the module `random`.
        numpy: NumPy's global state; empty when NumPy is not loaded.
        torch_cpu: torch's default generator.
        device: the device's generator.
        tracker: Megatron's named states, by name.
    """

    python: str
    numpy: str
    torch_cpu: str
    device: str
    tracker: dict[str, str]


@dataclass(frozen=True)
class Flags:
    """What this rank found bad: its flags at the vote, checked by counting elements where the values still exist.

    Attributes:
        local: a gradient was bad before the reduction.
        reduced: what the optimizer consumes was bad.
        loss: a loss was not finite.
        own_fault: a part of the guard failed on this rank; the values above may be incomplete.
        dead_step: the step before was applied though not finite.
    """

    local: bool
    reduced: bool
    loss: bool
    own_fault: bool
    dead_step: bool


@dataclass(frozen=True)
class ScalerState:
    """The dynamic loss scaler at the step.

    Attributes:
        in_search: no step was applied yet: the scale is still being searched for.
        just_raised: the scale went up, and no step was applied at it yet.
        skips_in_a_row: skips up to now, this one not counted.
    """

    in_search: bool
    just_raised: bool
    skips_in_a_row: int


@dataclass(frozen=True)
class RankSets:
    """Every rank of the exchange, by what happened to it.

    Attributes:
        bad_before: bad before the reduction.
        bad_after_only: infected: bad through communication alone.
        clean: neither.
    """

    bad_before: tuple[int, ...]
    bad_after_only: tuple[int, ...]
    clean: tuple[int, ...]

    @property
    def everyone(self) -> tuple[int, ...]:
        """All ranks of the exchange, set by set."""
        return (*self.bad_before, *self.bad_after_only, *self.clean)


@dataclass(frozen=True, kw_only=True)
class Postmortem:
    """What one rank knows of one incident.

    Attributes:
        schema_version: form of this file.
        run_id: name of the run, the same on all ranks.
        step: step as the training log counts it, first step 1.
        kind: where the non-finite values were met first.
        phase: "signal" when written before the replay, "complete" at the end.
        coordinates: place of the rank in the parallel layout.
        sizes: the parallel layout.
        host: host name.
        pid: process number on the host.
        device: the device of this rank.
        microbatches: the micro-batches of the step.
        local: gradients before the reduction.
        reduced: gradients after it.
        grad_norm: the norm Megatron computed; null before it did.
        clip_coefficient: the factor Megatron would clip with; null before it computed one.
        loss_scale: factor on the loss; null without one.
        scaler: the scaler that adjusts it; null where none does.
        rng: digests of the random states.
        flags: what the rank brought to the vote.
        ranks: all ranks by what happened to them; null before the exchange.
        groups: the failing set as products of parallel axes.
        infected_groups: the infected set in the same form.
        policy: what was done: abort, skip or continue.
        versions: versions of the packages that matter.
        replay: whether the step was run again on this rank.
        audited: weights, moments, buffers and batch were looked at.
        audit: what of them was bad before any replay.
        changed_after_fetch: micro-batches whose data is no longer what the data iterator handed out.
        arbitrations: suspect calls of this rank that were run again.
        health: what the hardware under this rank says of itself; null where nothing was asked.
        notes: what else a reader should know.
        phrases: how texts of this file were put together, by text; empty in that of a clean rank.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    step: int
    kind: Kind
    phase: Literal["signal", "complete"]
    coordinates: Coordinates
    sizes: ParallelSizes
    host: str
    pid: int
    device: DeviceFacts
    microbatches: tuple[Microbatch, ...]
    local: LocalGradients
    reduced: ReducedState
    grad_norm: float | None
    clip_coefficient: float | None
    loss_scale: float | None
    rng: RngDigests
    flags: Flags
    ranks: RankSets | None
    groups: tuple[RankGroup, ...]
    policy: str
    versions: dict[str, str]
    scaler: ScalerState | None = None
    infected_groups: tuple[RankGroup, ...] = ()
    replay: ReplaySummary = field(default_factory=ReplaySummary)
    audited: bool = False
    audit: tuple[AuditFinding, ...] = ()
    changed_after_fetch: tuple[int, ...] = ()
    arbitrations: tuple[Arbitration, ...] = ()
    health: DeviceHealth | None = None
    notes: tuple[str, ...] = ()
    phrases: dict[str, Phrasing] = field(default_factory=dict)
