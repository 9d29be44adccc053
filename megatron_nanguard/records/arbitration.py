"""What the suspect call did when it was run again: here, on a second device, and in higher precision on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.bundle import SavedOutput

BAD = "bad"
FINITE = "finite"
NOT_TRIED = "not_tried"


@dataclass(frozen=True, kw_only=True)
class Arbitration:
    """The suspect call of one origin, run again. An outcome is "bad", "finite", "not_tried" or the reason why not.

    Attributes:
        rank: global rank that made the call.
        operator: such as "aten.log.default", or "SwiGLUFunction.backward" for an opaque region.
        event: its running number in the trace; null where it has none.
        module: global module path.
        inputs_bad: an input held NaN or Inf already.
        repeats: how often it ran again on the same device.
        repeats_bad: how many of these gave a NaN or Inf.
        peer: outcome on the device of another rank.
        peer_rank: that rank; null without one.
        peer_device: what that device says of itself; empty without one.
        peer_is_alike: it is the same model, and on the same host; null without a peer.
        reference_fp32: outcome in float32 on the CPU, rounded to the type of the output.
        reference_fp64: the same in float64.
        out_of_range: the float64 result is finite, but not in the type of the output.
        reference: what served as reference: "aten" for an operator in higher precision, else its name; empty without.
        captured: the call could be saved.
        note: why something was not tried, or what a reader should know.
    """

    rank: int
    operator: str
    event: int | None = None
    module: str = ""
    inputs_bad: bool = False
    repeats: int = 0
    repeats_bad: int = 0
    peer: str = NOT_TRIED
    peer_rank: int | None = None
    peer_device: str = ""
    peer_is_alike: bool | None = None
    reference_fp32: str = NOT_TRIED
    reference_fp64: str = NOT_TRIED
    out_of_range: bool = False
    reference: str = ""
    captured: bool = True
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PeerAnswer:
    """What a peer found: the content of `answer.json` beside the call it was sent.

    Attributes:
        rank: the peer.
        device: what its device says of itself.
        host: it is in.
        outcome: "bad", "finite" or the reason why it did not run the call.
        schema_version: form of this file.
    """

    rank: int
    device: str
    host: str = ""
    outcome: str
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class DeviceOutcome:
    """A saved call on one device.

    Attributes:
        device: such as "cuda:1", or "cpu, float64" for the reference.
        outcome: "bad", "finite" or the reason why it did not run.
        outputs: what came out; empty where it was not counted.
    """

    device: str
    outcome: str
    outputs: tuple[SavedOutput, ...]
