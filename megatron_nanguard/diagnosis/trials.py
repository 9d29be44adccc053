"""What to try next where there is no second cause to tell the first one from; each with what confirms the cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.records.phrase import phrase


class Trial(NamedTuple):
    """One thing to try.

    Attributes:
        do: the flag or command.
        outcome: what is seen if the cause is the right one.
        is_open: whether it makes sense here and was not done already.
        option: of the host that it changes; empty for none.
    """

    do: str
    outcome: str
    is_open: Callable[[Evidence], bool] = lambda evidence: True
    option: str = ""


def has_call(evidence: Evidence) -> bool:
    """Whether a call was saved that tells something: one that was given NaN or Inf is bad everywhere."""
    return any(each.captured and not each.inputs_bad for each in evidence.arbitrations)


def is_not_synchronous(evidence: Evidence) -> bool:
    """Whether the step was not run again with a wait after every operator."""
    return evidence.came_back("synchronous") is None


def is_not_local(evidence: Evidence) -> bool:
    """Whether the model may be made of fused layers."""
    return evidence.host_options.get("transformer_impl") != "local"


def is_on(*backends: str) -> Callable[[Evidence], bool]:
    """Whether the job computes on one of these; an unknown one may be any."""
    return lambda evidence: evidence.backend in (*backends, "")


is_on_accelerator: Final = is_on("cuda", "npu")


ON_THE_CPU: Final = phrase("python bundle/repro.py --device cpu")
WAITING_ALWAYS: Final = phrase("the same steps with CUDA_LAUNCH_BLOCKING=1 (ASCEND_LAUNCH_BLOCKING=1 on Ascend)")
UNFUSED_LAYERS: Final = phrase("the same steps with --transformer-impl local")
IN_FIXED_ORDER: Final = phrase("the same steps with HCCL_DETERMINISTIC=true")
WITHOUT_CACHE: Final = phrase(
    "the same steps with PYTORCH_NO_CUDA_MEMORY_CACHING=1 (PYTORCH_NO_NPU_MEMORY_CACHING=1 on Ascend)"
)
HERE_AND_ELSEWHERE: Final = phrase("the same steps several times on this host, and as often on another")

WAITING: Final = Trial(
    WAITING_ALWAYS,
    phrase("clean if something is waited for too late"),
    lambda evidence: is_not_synchronous(evidence) and is_on_accelerator(evidence),
)
REPEATING: Final = Trial(
    HERE_AND_ELSEWHERE,
    phrase("bad only here if it is the device"),
)
IF_THE_TRANSPORT: Final = phrase("clean if the transport is wrong")
ALONE: Final[dict[str, tuple[Trial, ...]]] = {
    "data": (
        Trial(
            phrase("the same steps with the samples of this batch left out"), phrase("clean if a sample is at fault")
        ),
    ),
    "loss_or_mask": (
        Trial(
            phrase("the count of valid tokens of this micro-batch on every rank"),
            phrase("a count of 0 confirms an empty mask"),
        ),
    ),
    "numerics": (
        Trial(
            phrase("the same steps with --lr halved, from a checkpoint before them"),
            phrase("clean, or bad later, if values had grown"),
        ),
    ),
    "norm_overflow": (
        Trial(
            phrase("the norm of every parameter in this step: nanguard report"),
            phrase("the largest one is what has grown"),
        ),
    ),
    "loss_scaler": (Trial(phrase("the next steps"), phrase("the scale comes down by itself, and the alarms end")),),
    "operator": (
        Trial(
            UNFUSED_LAYERS,
            phrase("clean if a fused kernel is wrong"),
            is_not_local,
            "transformer_impl",
        ),
        Trial(
            ON_THE_CPU,
            phrase("finite if the kernel of the device is wrong"),
            has_call,
        ),
        Trial(
            phrase("the same steps with another release of the library that the operator is from"),
            phrase("clean if it is wrong"),
        ),
    ),
    "communication": (
        Trial(phrase("the same steps with NCCL_ALGO=Ring"), IF_THE_TRANSPORT, is_on("cuda")),
        Trial(IN_FIXED_ORDER, IF_THE_TRANSPORT, is_on("npu")),
        Trial(
            phrase("print what each member sends at this call and what each gets"),
            phrase("finite and small going in, bad coming out if the transport is wrong"),
        ),
    ),
    "uninitialised_or_race": (
        WAITING,
        Trial(
            WITHOUT_CACHE,
            phrase("another outcome if memory is read that nobody wrote"),
            is_on_accelerator,
        ),
        REPEATING,
    ),
    "state_corruption": (
        Trial(
            phrase("the same steps from the checkpoint before the last"),
            phrase("clean if the state went bad after it was saved"),
        ),
    ),
    "hardware_transient": (REPEATING,),
    "hardware_persistent": (
        Trial(phrase("the same steps without the host of this rank"), phrase("clean if it is the device")),
    ),
    "framework": (
        Trial(
            phrase("the same steps with another release of megatron-core"),
            phrase("clean if the training code is at fault"),
        ),
    ),
    "checker_artifact": (
        Trial(
            phrase("the same steps with NANGUARD=0 and --check-for-nan-in-loss-and-grad"),
            phrase("no alarm of Megatron's own if only ours was wrong"),
        ),
    ),
    "undecided": (WAITING, REPEATING),
}
"""The first that is open is proposed; the last of each cause always is."""
