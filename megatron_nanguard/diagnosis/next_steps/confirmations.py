"""What confirms one cause, where no second one is likely; the cheapest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.phrase import phrase


class Confirmation(NamedTuple):
    """One thing to try.

    Attributes:
        cause: the cause that it confirms.
        do: the flag or command.
        outcome: what is seen if the cause is the right one.
        is_open: whether it makes sense here and was not done already.
        option: of Megatron that it changes; empty for none.
    """

    cause: Cause
    do: str
    outcome: str
    is_open: Callable[[Case], bool] = lambda case: True
    option: str = ""


def has_fused_layers(case: Case) -> bool:
    """Whether the model may be made of fused layers."""
    return case.host_options.get("transformer_impl") != "local"


def is_on(*backends: str) -> Callable[[Case], bool]:
    """Whether the run computes on one of these; an unknown backend may be any of them."""
    return lambda case: case.backend in (*backends, "")


is_on_accelerator: Final = is_on("cuda", "npu")


def waits_on_accelerator(case: Case) -> bool:
    """Whether a run that waits after every operator is possible, and was not done already."""
    return case.came_back("synchronous") is None and is_on_accelerator(case)


ON_THE_CPU: Final = phrase("python bundle/repro.py --device cpu")
WAITING_ALWAYS: Final = phrase("the same steps with CUDA_LAUNCH_BLOCKING=1 (ASCEND_LAUNCH_BLOCKING=1 on Ascend)")
UNFUSED_LAYERS: Final = phrase("the same steps with --transformer-impl local")
IN_FIXED_ORDER: Final = phrase("the same steps with HCCL_DETERMINISTIC=true")
WITHOUT_CACHE: Final = phrase(
    "the same steps with PYTORCH_NO_CUDA_MEMORY_CACHING=1 (PYTORCH_NO_NPU_MEMORY_CACHING=1 on Ascend)"
)
HERE_AND_ELSEWHERE: Final = phrase("the same steps several times on this host, and as often on another")

IF_A_WAIT_IS_LATE: Final = phrase("clean if something is waited for too late")
IF_THE_DEVICE: Final = phrase("bad only here if it is the device")
IF_THE_TRANSPORT: Final = phrase("clean if the transport is wrong")

CONFIRMATIONS: Final = (
    Confirmation(
        Cause.STATE_CORRUPTION,
        phrase("the same steps from the checkpoint before the last"),
        phrase("clean if the state went bad after it was saved"),
    ),
    Confirmation(
        Cause.DATA,
        phrase("the same steps with the samples of this batch left out"),
        phrase("clean if a sample is at fault"),
    ),
    Confirmation(
        Cause.LOSS_OR_MASK,
        phrase("the count of valid tokens of this micro-batch on every rank"),
        phrase("a count of 0 confirms an empty mask"),
    ),
    Confirmation(Cause.UNINITIALISED_OR_RACE, WAITING_ALWAYS, IF_A_WAIT_IS_LATE, waits_on_accelerator),
    Confirmation(
        Cause.UNINITIALISED_OR_RACE,
        WITHOUT_CACHE,
        phrase("another outcome if memory is read that nobody wrote"),
        is_on_accelerator,
    ),
    Confirmation(Cause.UNINITIALISED_OR_RACE, HERE_AND_ELSEWHERE, IF_THE_DEVICE),
    Confirmation(Cause.COMMUNICATION, phrase("the same steps with NCCL_ALGO=Ring"), IF_THE_TRANSPORT, is_on("cuda")),
    Confirmation(Cause.COMMUNICATION, IN_FIXED_ORDER, IF_THE_TRANSPORT, is_on("npu")),
    Confirmation(
        Cause.COMMUNICATION,
        phrase("print what each member sends at this call and what each gets"),
        phrase("finite and small going in, bad coming out if the transport is wrong"),
    ),
    Confirmation(
        Cause.OPERATOR, UNFUSED_LAYERS, phrase("clean if a fused kernel is wrong"), has_fused_layers, "transformer_impl"
    ),
    Confirmation(
        Cause.OPERATOR,
        ON_THE_CPU,
        phrase("finite if the kernel of the device is wrong"),
        lambda case: case.has_saved_call,
    ),
    Confirmation(
        Cause.OPERATOR,
        phrase("the same steps with another release of the library that the operator is from"),
        phrase("clean if it is wrong"),
    ),
    Confirmation(
        Cause.FRAMEWORK,
        phrase("the same steps with another release of megatron-core"),
        phrase("clean if the training code is at fault"),
    ),
    Confirmation(
        Cause.NUMERICS,
        phrase("the same steps with --lr halved, from a checkpoint before them"),
        phrase("clean, or bad later, if values had grown"),
    ),
    Confirmation(
        Cause.LOSS_SCALER, phrase("the next steps"), phrase("the scale comes down by itself, and the alarms end")
    ),
    Confirmation(
        Cause.NORM_OVERFLOW,
        phrase("the norm of every parameter in this step: nanguard report"),
        phrase("the largest one is what has grown"),
    ),
    Confirmation(Cause.HARDWARE_TRANSIENT, HERE_AND_ELSEWHERE, IF_THE_DEVICE),
    Confirmation(
        Cause.HARDWARE_PERSISTENT,
        phrase("the same steps without the host of this rank"),
        phrase("clean if it is the device"),
    ),
    Confirmation(
        Cause.CHECKER_ARTIFACT,
        phrase("the same steps with NANGUARD=0 and --check-for-nan-in-loss-and-grad"),
        phrase("no alarm of Megatron's own if only ours was wrong"),
    ),
    Confirmation(Cause.UNDECIDED, WAITING_ALWAYS, IF_A_WAIT_IS_LATE, waits_on_accelerator),
    Confirmation(Cause.UNDECIDED, HERE_AND_ELSEWHERE, IF_THE_DEVICE),
)
"""Of each cause the cheapest first. Those of "undecided" are proposed where a cause has none that is open; the last one
is always open."""
