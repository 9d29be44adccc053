"""What a suspect call proves that was run again: on its own device, on a second one, and in higher precision."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.diagnosis.origin_facts import base_name, nan_argument
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import Phrase, phrase
from megatron_nanguard.records.suspect_call import Arbitration


def name_call(call: Arbitration) -> str:
    """The call in a sentence: "aten.log.default on rank 5"."""
    return phrase("{operator} on rank {rank}", operator=call.operator, rank=call.rank)


def reference_outcome(call: Arbitration) -> str:
    """The outcome of the most exact reference that ran: "bad", "finite" or "not_tried"."""
    for outcome in (call.reference_fp64, call.reference_fp32):
        if outcome in ("bad", "finite"):
            return outcome
    return "not_tried"


def is_always_bad(call: Arbitration) -> bool:
    """Whether every repetition on its own device was bad, and there was one."""
    return 0 < call.repeats == call.repeats_bad


def depends_on_memory(call: Arbitration) -> bool:
    """Whether it was bad, but never where fresh memory was filled with zeros before it was used."""
    return call.repeats_bad > 1 and call.zero_filled > 1 and not call.zero_filled_bad


def is_bad_in_zeros(call: Arbitration) -> bool:
    """Whether it was bad every time, also where fresh memory was filled with zeros before it was used."""
    return is_always_bad(call) and call.zero_filled > 0


def conclusion(call: Arbitration, origins: Sequence[Origin] = ()) -> str:
    """Say in one sentence what the runs of one call prove together.

    Args:
        call: with its outcomes here, on a peer and in higher precision.
        origins: of the incident, one of which is the call's.
    """
    if not call.repeats:
        return phrase("It could not be run again, which proves nothing.")
    if call.inputs_bad:
        return _of_bad_inputs(call, origins)
    if call.repeats_bad == 0:
        return phrase("Never bad again on the same inputs: it was a passing fault, or something wrote into its memory.")
    if depends_on_memory(call):
        return phrase(
            "Bad, but never where fresh memory is filled with zeros first: it reads memory before it writes it."
        )
    if call.repeats_bad < call.repeats:
        return phrase(
            "{bad} of {repeats} runs on equal inputs are bad: the device or unwritten memory, not the values.",
            bad=call.repeats_bad,
            repeats=call.repeats,
        )
    return _of_always_bad(call)


def _of_bad_inputs(call: Arbitration, origins: Sequence[Origin]) -> Phrase:
    if any(_is_given_plain_nan(call, origin) for origin in origins):
        return phrase("The call only stores the NaN that its caller passed: the caller is at fault.")
    return phrase(
        "It was given NaN or Inf, so it proves nothing about the call itself: look at where its arguments come from."
    )


def _is_given_plain_nan(call: Arbitration, origin: Origin) -> bool:
    """Whether the origin is this call, and a plain number that is NaN is among its arguments."""
    is_same_place = (call.rank, call.module) == (origin.rank, origin.module)
    is_same_call = is_same_place and base_name(call.operator) == base_name(origin.operator)
    return is_same_call and nan_argument(origin) is not None


def _of_always_bad(call: Arbitration) -> Phrase:
    if call.peer == "finite":
        return _differs_from_peer(call)
    if call.out_of_range:
        return phrase(
            "The exact result is finite and does not fit the type of the output: the values are too large for it."
        )
    reference = reference_outcome(call)
    if reference == "bad":
        return phrase("Not finite in higher precision either: the values are at fault, not the device.")
    if reference == "finite":
        return _differs_from_reference(call)
    if call.peer == "bad" and not call.peer_is_alike:
        return phrase("Bad every time, also on another device: the operator is at fault, or what went in.")
    return phrase(
        "Bad every time on its own device, and nothing to compare with: a device cannot be told from the call."
    )


def _differs_from_peer(call: Arbitration) -> Phrase:
    if call.peer_is_alike:
        return phrase(
            "Bad here every time and finite on rank {peer}, the same model on the same host: this rank differs, be it "
            "the device or its state.",
            peer=call.peer_rank,
        )
    return phrase("Bad here every time and finite on another device: this device is wrong.")


def _differs_from_reference(call: Arbitration) -> Phrase:
    if call.peer != "bad":
        return phrase("Bad every time, and finite in higher precision: the operator is wrong, or this device.")
    if call.peer_is_alike:
        return phrase(
            "Bad every time, also on rank {peer}, the same model on the same host, which is weak evidence; finite in "
            "higher precision: the operator is wrong, or this kind of device.",
            peer=call.peer_rank,
        )
    return phrase(
        "Bad every time, also on another device, and finite in higher precision: the operator is wrong, not this "
        "device."
    )
