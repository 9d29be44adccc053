"""What was bad before the replay began: state and data are looked at before any operator is blamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
