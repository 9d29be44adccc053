"""What to try next: the cheapest experiment on which two causes predict different outcomes.

Each is one switch, so that the outcome can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis.evidence import Evidence

BAD, CLEAN = "bad again", "clean"
BEARING_OPTIONS: Final = ("overlap_grad_reduce", "overlap_param_gather", "recompute_granularity")
"""Options of the host that an experiment switches off."""


class Experiment(NamedTuple):
    """One thing to try.

    Attributes:
        do: the flag or command.
        outcomes: what each cause predicts; one that is not named predicts nothing.
        is_open: whether it makes sense here and was not done already.
    """

    do: str
    outcomes: dict[str, str]
    is_open: Callable[[Evidence], bool]


def _has_call(evidence: Evidence) -> bool:
    return any(arbitration.captured for arbitration in evidence.arbitrations)


def _has_option(option: str) -> Callable[[Evidence], bool]:
    return lambda evidence: option in evidence.host_options


def _is_in(word: str) -> Callable[[Evidence], bool]:
    return lambda evidence: any(word in origin.module for origin in evidence.origins)


def _predict(clean: str, bad: str) -> dict[str, str]:
    return {**dict.fromkeys(clean.split(), CLEAN), **dict.fromkeys(bad.split(), BAD)}


CHEAPEST_FIRST: Final = (
    Experiment(
        "python bundle/repro.py --device cpu",
        _predict(
            clean="operator hardware_transient hardware_persistent uninitialised_or_race communication",
            bad="numerics loss_or_mask data state_corruption",
        ),
        lambda evidence: (
            _has_call(evidence) and all(each.reference_fp64 not in ("bad", "finite") for each in evidence.arbitrations)
        ),
    ),
    Experiment(
        "python bundle/repro.py --device cuda (npu on Ascend) on another host",
        _predict(
            clean="hardware_transient hardware_persistent uninitialised_or_race communication",
            bad="operator numerics loss_or_mask data state_corruption",
        ),
        lambda evidence: (
            _has_call(evidence) and all(each.peer not in ("bad", "finite") for each in evidence.arbitrations)
        ),
    ),
    Experiment(
        "the next steps with --nanguard-on-nonfinite skip",
        _predict(
            clean="data loss_or_mask loss_scaling hardware_transient checker_artifact",
            bad="state_corruption hardware_persistent",
        ),
        lambda evidence: True,
    ),
    Experiment(
        "the same steps with --initial-loss-scale 4096",
        _predict(clean="loss_scaling", bad="numerics operator data loss_or_mask communication state_corruption"),
        lambda evidence: evidence.scaler is not None and evidence.scaler.lower_scale == "not_tried",
    ),
    Experiment(
        "the same steps with CUDA_LAUNCH_BLOCKING=1 (ASCEND_LAUNCH_BLOCKING=1 on Ascend)",
        _predict(
            clean="uninitialised_or_race",
            bad="operator numerics loss_or_mask data state_corruption framework communication hardware_persistent",
        ),
        lambda evidence: evidence.came_back("synchronous") is None,
    ),
    Experiment(
        "the same steps without --overlap-grad-reduce",
        _predict(clean="uninitialised_or_race", bad="communication numerics operator state_corruption data"),
        _has_option("overlap_grad_reduce"),
    ),
    Experiment(
        "the same steps without --overlap-param-gather",
        _predict(clean="uninitialised_or_race framework", bad="state_corruption operator numerics data"),
        _has_option("overlap_param_gather"),
    ),
    Experiment(
        "the same steps with --attention-backend unfused",
        _predict(clean="operator", bad="numerics loss_or_mask data uninitialised_or_race hardware_transient"),
        _is_in("attention"),
    ),
    Experiment(
        "the same steps with --transformer-impl local",
        _predict(clean="operator", bad="numerics loss_or_mask data state_corruption hardware_persistent"),
        lambda evidence: True,
    ),
    Experiment(
        "the same steps with --accumulate-allreduce-grads-in-fp32",
        _predict(clean="numerics", bad="communication operator uninitialised_or_race"),
        lambda evidence: any(origin.operator.startswith("allreduce") for origin in evidence.origins),
    ),
    Experiment(
        "the same steps with NCCL_ALGO=Ring and NCCL_NVLS_ENABLE=0 (HCCL_DETERMINISTIC=true on Ascend)",
        _predict(clean="communication", bad="numerics operator data state_corruption loss_or_mask"),
        lambda evidence: True,
    ),
    Experiment(
        "the same steps without --recompute-granularity",
        _predict(clean="framework", bad="operator numerics data loss_or_mask"),
        _has_option("recompute_granularity"),
    ),
    Experiment(
        "the same steps with PYTORCH_NO_CUDA_MEMORY_CACHING=1 (PYTORCH_NO_NPU_MEMORY_CACHING=1 on Ascend)",
        _predict(
            clean="uninitialised_or_race",
            bad="hardware_persistent operator numerics data loss_or_mask framework",
        ),
        lambda evidence: True,
    ),
    Experiment(
        "the same steps on other hosts",
        _predict(
            clean="hardware_transient hardware_persistent",
            bad="operator numerics data loss_or_mask framework uninitialised_or_race state_corruption",
        ),
        lambda evidence: True,
    ),
)

ALONE: Final = {
    "data": "the same steps with the samples of this batch left out",
    "loss_or_mask": "the count of valid tokens of this micro-batch on every rank",
    "numerics": "the same steps with --lr halved, from the last checkpoint",
    "norm_overflow": "the norm of every parameter in this step: nanguard report",
    "loss_scaling": "the next steps: the scale comes down by itself",
    "operator": "the same steps with --transformer-impl local",
    "communication": "the same steps with NCCL_ALGO=Ring (HCCL_DETERMINISTIC=true on Ascend)",
    "uninitialised_or_race": "the same steps with CUDA_LAUNCH_BLOCKING=1 (ASCEND_LAUNCH_BLOCKING=1 on Ascend)",
    "state_corruption": "the same steps from the checkpoint before the last",
    "hardware_transient": "the same steps on other hosts",
    "hardware_persistent": "the same steps without the host of this rank",
    "framework": "the same steps with another release of megatron-core",
    "checker_artifact": "the same steps with NANGUARD=0 and --check-for-nan-in-loss-and-grad",
    "undecided": "the same steps with CUDA_LAUNCH_BLOCKING=1 (ASCEND_LAUNCH_BLOCKING=1 on Ascend)",
}
"""Where there is no other cause to tell it from."""


def cheapest(cause: str, other: str | None, evidence: Evidence) -> str:
    """Name the cheapest experiment that separates two causes, and what each of them predicts.

    Args:
        cause: its code.
        other: the code of the runner-up; None where there is none.
        evidence: what was done already.
    """
    for experiment in CHEAPEST_FIRST if other else ():
        predicted, opposed = experiment.outcomes.get(cause), experiment.outcomes.get(other or "")
        if predicted and opposed and predicted != opposed and experiment.is_open(evidence):
            return f"{experiment.do}: {predicted} if {cause}, {opposed} if {other}"
    return ALONE[cause]
