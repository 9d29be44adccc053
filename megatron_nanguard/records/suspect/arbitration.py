"""Results of running the suspect call again: on its device, on a second device, and in higher precision on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.suspect.bundle import SavedOutput

BAD = "bad"
FINITE = "finite"
NOT_TRIED = "not_tried"


@dataclass(frozen=True, kw_only=True)
class Arbitration:
    """The suspect call of one origin, run again. An outcome is "bad", "finite", "not_tried" or why it was not run.

    Attributes:
        rank: global rank that made the call.
        operator: such as "aten.log.default", or "SwiGLUFunction.backward" for an opaque region.
        event: its number in the trace; null where it has none.
        module: global module path.
        inputs_bad: whether an input held NaN or Inf.
        repeats: number of runs on the same device.
        repeats_bad: number of these runs with NaN or Inf in the result.
        peer: outcome on the device of another rank.
        peer_rank: that rank; null without one.
        peer_device: its device with the model name; empty without one.
        peer_is_alike: whether it is the same model in the same host; null without a peer.
        reference_fp32: outcome in float32 on the CPU, rounded to the dtype of the output.
        reference_fp64: the same in float64.
        out_of_range: whether the float64 result is finite, but not after rounding to the dtype of the output.
        reference: "aten" where torch's own operator ran in higher precision, else the name of the reference; or empty.
        captured: whether the call could be saved.
        note: why something was not tried, and other remarks.
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
    """The answer of a peer: the content of `answer.json`, beside the call that was sent to it.

    Attributes:
        rank: of the peer.
        device: its device with the model name.
        host: name of its host.
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
        outputs: the results; empty where it did not run.
    """

    device: str
    outcome: str
    outputs: tuple[SavedOutput, ...]
