"""What a screening found: devices, links and collectives of a job tried with known data, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.coordinates import ParallelSizes

Result = Literal["right", "wrong", "late", "failed", "unsupported"]
BAD: Final[tuple[Result, ...]] = ("wrong", "late", "failed")
"""Results that show a fault of a device, link or rank."""
OutlierKind = Literal["device", "link", "rank", "group"]


@dataclass(frozen=True)
class DeviceCheck:
    """One kind of computation, tried on one device.

    Attributes:
        name: of the check, such as "matmul, bfloat16".
        result: "failed" when the device raised an error.
        words: what was wrong; empty when nothing was.
        digest: 16 hex digits of what came out; empty where ranks need not agree.
        seconds: of the fastest repetition, on the device.
    """

    name: str
    result: Result
    words: str
    digest: str
    seconds: float


@dataclass(frozen=True)
class Transfer:
    """One message from a rank to another, as one end of it saw it.

    Attributes:
        source: rank that sent.
        target: rank that received.
        end: whose view this is: "sent" is the source's, "arrived" the target's.
        result: "wrong" when the digest is not the expected one.
        digest: 16 hex digits of what was sent, or of what arrived; empty when nothing was.
        expected: the digest that known data has.
        seconds: from the call to the end of it, the connection having been made before.
        words: the error, where there was one.
    """

    source: int
    target: int
    end: Literal["sent", "arrived"]
    result: Result
    digest: str
    expected: str
    seconds: float
    words: str = ""


@dataclass(frozen=True)
class CollectiveCheck:
    """One collective over one parallel group, as one member saw it.

    Attributes:
        axis: the parallel axis, or several joined by "+"; "all" for every rank.
        ranks: the members.
        operation: such as "all_reduce".
        result: of this member.
        wrong_from: members whose contribution arrived wrong here, where the operation keeps them apart.
        seconds: of the fastest of several calls.
        words: the error, where there was one.
    """

    axis: str
    ranks: tuple[int, ...]
    operation: str
    result: Result
    wrong_from: tuple[int, ...]
    seconds: float
    words: str = ""


@dataclass(frozen=True)
class RankScreening:
    """Everything that one rank tested.

    Attributes:
        rank: global rank.
        host: host name.
        device: what the device calls itself.
        devices: the checks of its device.
        transfers: the messages that it sent and received.
        collectives: the collectives of its groups.
    """

    rank: int
    host: str
    device: str
    devices: tuple[DeviceCheck, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    collectives: tuple[CollectiveCheck, ...] = ()


@dataclass(frozen=True)
class Outlier:
    """A device, link, rank or group that gave wrong values, or none at all.

    Attributes:
        kind: "device" computes wrongly; "link" spoils what passes between two ranks; "rank" spoils or holds up what it
            exchanges with everybody; "group" cannot be narrowed further.
        ranks: one for a device or a rank, the two ends of a link, the members of a group.
        words: the accusation in a sentence.
        evidence: what it rests on.
    """

    kind: OutlierKind
    ranks: tuple[int, ...]
    words: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Screening:
    """The result of one screening.

    Attributes:
        schema_version: version of this form.
        started: UTC, ISO 8601.
        seconds: how long it took.
        sizes: the layout whose groups and links were tried.
        outliers: what was at fault; empty when nothing was wrong.
        hints: slow ones, and devices whose bits differ within the tolerance; no faults.
        notes: what was not tried, and why.
        ranks: what every rank tried; a rank that never came back is missing.
    """

    started: str
    seconds: float
    sizes: ParallelSizes
    outliers: tuple[Outlier, ...]
    hints: tuple[str, ...]
    notes: tuple[str, ...]
    ranks: tuple[RankScreening, ...]
    schema_version: int = SCHEMA_VERSION
