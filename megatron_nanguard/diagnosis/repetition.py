"""What an accused call proves that was run again on its own: one sentence, from its outcomes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import phrase

NOT_RUN: Final = phrase("It could not be run again, which proves nothing.")
GIVEN_BAD: Final = phrase(
    "It was given NaN or Inf, so it proves nothing about the call itself: look at where its arguments come from."
)
STORED: Final = phrase("The call only stores the NaN that its caller passed: the caller is at fault.")
SOMETIMES: Final = phrase(
    "{bad} of {repeats} runs on equal inputs are bad: the device or unwritten memory, not the values."
)
NEVER: Final = phrase("Never bad again on the same inputs: it was a passing fault, or something wrote into its memory.")
ALONE_ON_DEVICE: Final = phrase("Bad here every time and finite on another device: this device is wrong.")
ALONE_ON_ALIKE: Final = phrase(
    "Bad here every time and finite on rank {peer}, the same model on the same host: this rank differs, be it the "
    "device or its state."
)
WRONG_EVERYWHERE: Final = phrase(
    "Bad every time, also on another device, and finite in higher precision: the operator is wrong, not this device."
)
WRONG_HERE: Final = phrase("Bad every time, and finite in higher precision: the operator is wrong, or this device.")
ON_ALIKE: Final = phrase(
    "Bad every time, also on rank {peer}, the same model on the same host, which is weak evidence; finite in higher "
    "precision: the operator is wrong, or this kind of device."
)
TOO_LARGE: Final = phrase(
    "The exact result is finite and does not fit the type of the output: the values are too large for it."
)
BY_DEFINITION: Final = phrase("Not finite in higher precision either: the values are at fault, not the device.")
ONLY_REPEATED: Final = phrase(
    "Bad every time on its own device, and nothing to compare with: a device cannot be told from the call."
)


def conclusion(call: Arbitration, origins: Sequence[Origin] = ()) -> str:
    """Say what the runs of one call prove together.

    Args:
        call: with its outcomes here, on a peer and in higher precision.
        origins: of the incident, one of which is the call's.
    """
    if not call.repeats:
        return NOT_RUN
    if call.inputs_bad:
        return STORED if any(_is_passed_nan(call, origin) for origin in origins) else GIVEN_BAD
    if call.repeats_bad < call.repeats:
        words = SOMETIMES if call.repeats_bad else NEVER
        return words.format(bad=call.repeats_bad, repeats=call.repeats)
    return _of_an_always_bad(call).format(peer=call.peer_rank)


def _is_passed_nan(call: Arbitration, origin: Origin) -> bool:
    """Whether it is the call of an origin that got its NaN as a plain number."""
    same = (call.rank, call.module) == (origin.rank, origin.module)
    is_call = same and origin_facts.base_name(call.operator) == origin_facts.base_name(origin.operator)
    return is_call and origin_facts.bad_number(origin) is not None


def _of_an_always_bad(call: Arbitration) -> str:
    if call.peer == "finite":
        return ALONE_ON_ALIKE if call.peer_is_alike else ALONE_ON_DEVICE
    if call.out_of_range:
        return TOO_LARGE
    reference = origin_facts.reference(call)
    if reference == "bad":
        return BY_DEFINITION
    if reference != "finite":
        return ONLY_REPEATED
    if call.peer != "bad":
        return WRONG_HERE
    return ON_ALIKE if call.peer_is_alike else WRONG_EVERYWHERE
