"""What was bad before the replay, whether the step was run again, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PassLabel = Literal["plain", "traced", "probed", "synchronous", "marker"]
CameBack = Literal["yes", "no", "partly"]
Trial = Literal["finite", "bad", "not_tried"]
AuditKind = Literal["weight", "weight_only", "main_param", "exp_avg", "exp_avg_sq", "buffer", "batch"]


@dataclass(frozen=True)
class AuditFinding:
    """One tensor that was bad already.

    Attributes:
        kind: what it is; "weight_only" is a model weight that is bad while its main parameter is good.
        name: global parameter or buffer name; for data the micro-batch and the key.
        pattern: what was seen; "negative" for a second moment below zero.
        rank: global rank.
        note: what else a reader should know.
    """

    kind: AuditKind
    name: str
    pattern: Literal["nan", "inf", "nan+inf", "negative"]
    rank: int
    note: str = ""


@dataclass(frozen=True)
class ReplayPass:
    """One pass, over all ranks.

    Attributes:
        label: "plain" is the same call and nothing else; "traced" reads along; "probed" is another traced one, which
            looks closely at what the first one found; "synchronous" waits after every operator; "marker" fills every
            fresh buffer with a known NaN.
        came_back: whether the fault did: on every rank that had it, on none, or on others or some of them only.
    """

    label: PassLabel
    came_back: CameBack


@dataclass(frozen=True)
class ReplaySummary:
    """Whether the step was run again, and whether the replay gave the same bits.

    Attributes:
        done: the step was run again.
        why_not: why it was not; empty when it was.
        exact: the replay matched bit for bit; null when it was not run.
        stages: the stages that ran, in order.
        passes: what came of each pass.
        previous_batch: the previous step's batch on this state, over all ranks.
        lower_scale: the same step far below its dynamic loss scale, over all ranks.
        obstacle: what on this rank stood against it; empty where nothing did, and in the merged incident.
        finite_exact: every gradient element and loss that is finite in both the first pass and the plain one is the
            same bit for bit; null where that was not compared.
        only_losses: ranks without a gradient element that is finite in both, of which the losses alone were compared.
    """

    done: bool = False
    why_not: str = ""
    exact: bool | None = None
    stages: tuple[str, ...] = ()
    passes: tuple[ReplayPass, ...] = ()
    previous_batch: Trial = "not_tried"
    lower_scale: Trial = "not_tried"
    obstacle: str = ""
    finite_exact: bool | None = None
    only_losses: tuple[int, ...] = ()
