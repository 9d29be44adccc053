"""The causes that the diagnosis knows, with code, family, name and meaning; and a cause as one incident ranks it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from megatron_nanguard.records.phrase import Phrase, phrase


class Family(enum.Enum):
    """What is at fault, and so what has to be changed.

    Attributes:
        VALUES: the data, the state or the arithmetic of the step: the same values are bad on any device.
        CODE: an operator, or the training code around the model.
        MEMORY: memory that was read too early or written too late: it comes and goes with timing and layout.
        TRANSPORT: what carries messages between ranks.
        HARDWARE: a device.
        GUARD: our own check.
        OPEN: not enough evidence.
    """

    VALUES = "values"
    CODE = "code"
    MEMORY = "memory"
    TRANSPORT = "transport"
    HARDWARE = "hardware"
    GUARD = "guard"
    OPEN = "open"


class Cause(str, enum.Enum):
    """A cause, by the code that the files of a run hold.

    The order is that of the rules: what can be checked at once comes before hardware, our own check comes last.

    Attributes:
        family: what is at fault.
        words: its name in a sentence.
        meaning: one sentence for a reader who never met the code.
    """

    family: Family
    words: Phrase
    meaning: Phrase

    def __new__(cls, code: str, family: Family, words: Phrase, meaning: Phrase) -> Cause:
        member = str.__new__(cls, code)
        member._value_ = code
        member.family, member.words, member.meaning = family, words, meaning
        return member

    def __str__(self) -> str:
        return str(self.value)

    STATE_CORRUPTION = (
        "state_corruption",
        Family.VALUES,
        phrase("state bad before the step"),
        phrase("Weights, optimizer moments or buffers were bad before the step began."),
    )
    DATA = (
        "data",
        Family.VALUES,
        phrase("data"),
        phrase("The batch holds a bad value, or values that the model cannot take."),
    )
    LOSS_OR_MASK = (
        "loss_or_mask",
        Family.VALUES,
        phrase("loss or mask"),
        phrase(
            "The loss or a mask makes NaN: a division by no tokens, or a branch that is selected away and still has a "
            "gradient."
        ),
    )
    UNINITIALISED_OR_RACE = (
        "uninitialised_or_race",
        Family.MEMORY,
        phrase("unwritten memory or a race"),
        phrase("Memory was read before it was written, or overwritten while it was in use."),
    )
    COMMUNICATION = (
        "communication",
        Family.TRANSPORT,
        phrase("communication"),
        phrase("A communication delivered bad values although every rank sent finite ones."),
    )
    OPERATOR = (
        "operator",
        Family.CODE,
        phrase("faulty operator"),
        phrase("The call, or the custom backward it is in, makes NaN or Inf of finite inputs: that code is wrong."),
    )
    FRAMEWORK = (
        "framework",
        Family.CODE,
        phrase("framework"),
        phrase("The training code around the model is wrong: clipping, recompute, finalizing or gathering."),
    )
    NUMERICS = (
        "numerics",
        Family.VALUES,
        phrase("numerics"),
        phrase("Finite inputs leave the range or the domain of a correct operator: it gives NaN or Inf on any device."),
    )
    LOSS_SCALER = (
        "loss_scaler",
        Family.VALUES,
        phrase("loss scaling"),
        phrase("The fp16 loss scale is too high for this step; the scaler lowers it by itself."),
    )
    NORM_OVERFLOW = (
        "norm_overflow",
        Family.VALUES,
        phrase("norm overflow"),
        phrase("Every gradient is finite; the sum of their squares is too large for float32."),
    )
    HARDWARE_TRANSIENT = (
        "hardware_transient",
        Family.HARDWARE,
        phrase("passing hardware fault"),
        phrase("The device computed wrongly once: the same call on the same inputs is right now."),
    )
    HARDWARE_PERSISTENT = (
        "hardware_persistent",
        Family.HARDWARE,
        phrase("lasting hardware fault"),
        phrase("The device computes wrongly again and again: the same call is right on another device."),
    )
    CHECKER_ARTIFACT = (
        "checker_artifact",
        Family.GUARD,
        phrase("false alarm"),
        phrase("The alarm itself is doubtful: no gradient, loss or weight is bad."),
    )
    UNDECIDED = (
        "undecided",
        Family.OPEN,
        phrase("undecided"),
        phrase("No cause stands out: the facts fit several, or none."),
    )


@dataclass(frozen=True)
class RankedCause:
    """One explanation, with what speaks for and against it.

    Attributes:
        cause: its code, such as "numerics"; "undecided" where none stands out.
        confidence: between 0 and 1.
        for_: evidence for it; `for` in the file.
        against: evidence against it.
        not_tested: what would bear on it and was not tried.
        next: the cheapest next experiment.
    """

    cause: str
    confidence: float
    for_: tuple[str, ...] = field(metadata={"key": "for"})
    against: tuple[str, ...]
    not_tested: tuple[str, ...]
    next: str


def known_cause(code: str) -> Cause | None:
    """The cause with a code that was read from a file; None for a code of another version."""
    return next((cause for cause in Cause if cause == code), None)


def cause_words(code: str) -> str:
    """A cause in a sentence, such as "passing hardware fault"; a code of another version as it is."""
    cause = known_cause(code)
    return code.replace("_", " ") if cause is None else cause.words


def family_of(code: str) -> Family:
    """What is at fault by a cause; OPEN for a code of another version."""
    cause = known_cause(code)
    return Family.OPEN if cause is None else cause.family
