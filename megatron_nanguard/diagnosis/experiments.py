"""What to try next: the cheapest experiment on which two causes predict different outcomes.

Each is one switch, so that the outcome can be read. A flag is never proposed with the value that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis import history, origin_facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.joining.origins import is_reducing
from megatron_nanguard.diagnosis.trials import (
    ALONE,
    HERE_AND_ELSEWHERE,
    IN_FIXED_ORDER,
    ON_THE_CPU,
    UNFUSED_LAYERS,
    WAITING_ALWAYS,
    WITHOUT_CACHE,
    has_call,
    is_not_local,
    is_not_synchronous,
    is_on,
    is_on_accelerator,
)
from megatron_nanguard.records.causes import cause_words
from megatron_nanguard.records.phrase import phrase

BAD, CLEAN = "bad again", "clean"
BEARING_OPTIONS: Final = (
    "overlap_grad_reduce",
    "overlap_param_gather",
    "recompute_granularity",
    "transformer_impl",
    "attention_backend",
    "accumulate_allreduce_grads_in_fp32",
)
"""Options of the host that an experiment sets to another value."""
OFF: Final = ("False", "None")

SEPARATES: Final = phrase("{do}: clean points to {clean}, bad again to {bad}")
EXPECTS: Final = phrase("{do}: {outcome}")
NOW: Final = phrase("{do} (now {value})")
MOVE: Final = phrase(
    "{number} bad steps on rank {rank} ({steps}): move rank {rank} to another device or host; what follows the device "
    "is hardware, what stays with the rank is software or data"
)
IN_HARDWARE: Final = ("hardware_transient", "hardware_persistent")


class Experiment(NamedTuple):
    """One thing to try.

    Attributes:
        do: the flag or command.
        outcomes: what each cause predicts; one that is not named predicts nothing.
        is_open: whether it makes sense here and was not done already.
        option: of the host that it changes; empty for none.
        says: the whole sentence, where clean and bad again do not tell it all.
    """

    do: str
    outcomes: dict[str, str]
    is_open: Callable[[Evidence], bool]
    option: str = ""
    says: str = ""


def _has_option(option: str) -> Callable[[Evidence], bool]:
    return lambda evidence: evidence.host_options.get(option, "None") not in OFF


def _is_in_attention(evidence: Evidence) -> bool:
    is_unfused = evidence.host_options.get("attention_backend", "").endswith("unfused")
    return not is_unfused and any("attention" in origin.module for origin in evidence.origins)


def _sums_in_narrow_type(evidence: Evidence) -> bool:
    is_wide = evidence.host_options.get("accumulate_allreduce_grads_in_fp32") == "True"
    sums = [origin for origin in evidence.origins if is_reducing(origin.operator)]
    return not is_wide and any(origin.phase not in origin_facts.OF_ACTIVATIONS for origin in sums)


def _predict(clean: str, bad: str) -> dict[str, str]:
    return {**dict.fromkeys(clean.split(), CLEAN), **dict.fromkeys(bad.split(), BAD)}


CLEAN_IF_TRANSPORT: Final = _predict(clean="communication", bad="numerics operator data state_corruption loss_or_mask")
CHEAPEST_FIRST: Final = (
    Experiment(
        ON_THE_CPU,
        _predict(
            clean="operator hardware_transient hardware_persistent uninitialised_or_race communication",
            bad="numerics loss_or_mask data state_corruption",
        ),
        lambda evidence: (
            has_call(evidence) and all(each.reference_fp64 not in ("bad", "finite") for each in evidence.arbitrations)
        ),
    ),
    Experiment(
        phrase("python bundle/repro.py --device cuda (npu on Ascend) on another host"),
        _predict(
            clean="hardware_transient hardware_persistent uninitialised_or_race communication",
            bad="operator numerics loss_or_mask data state_corruption",
        ),
        lambda evidence: (
            has_call(evidence) and all(each.peer not in ("bad", "finite") for each in evidence.arbitrations)
        ),
    ),
    Experiment(
        phrase("the next steps with --nanguard-on-nonfinite skip"),
        _predict(
            clean="data loss_or_mask loss_scaler hardware_transient checker_artifact",
            bad="state_corruption hardware_persistent",
        ),
        lambda evidence: not history.recurrences(evidence),
    ),
    Experiment(
        phrase("the same steps with --initial-loss-scale 4096"),
        _predict(clean="loss_scaler", bad="numerics operator data loss_or_mask communication state_corruption"),
        lambda evidence: evidence.scaler is not None and evidence.scaler.lower_scale == "not_tried",
    ),
    Experiment(
        WAITING_ALWAYS,
        _predict(
            clean="uninitialised_or_race",
            bad="operator numerics loss_or_mask data state_corruption framework communication hardware_persistent",
        ),
        lambda evidence: is_not_synchronous(evidence) and is_on_accelerator(evidence),
    ),
    Experiment(
        phrase("the same steps without --overlap-grad-reduce"),
        _predict(clean="uninitialised_or_race", bad="communication numerics operator state_corruption data"),
        _has_option("overlap_grad_reduce"),
    ),
    Experiment(
        phrase("the same steps without --overlap-param-gather"),
        _predict(clean="uninitialised_or_race framework", bad="state_corruption operator numerics data"),
        _has_option("overlap_param_gather"),
    ),
    Experiment(
        phrase("the same steps with --attention-backend unfused"),
        _predict(clean="operator", bad="numerics loss_or_mask data uninitialised_or_race hardware_transient"),
        _is_in_attention,
        "attention_backend",
    ),
    Experiment(
        UNFUSED_LAYERS,
        _predict(clean="operator", bad="numerics loss_or_mask data state_corruption hardware_persistent"),
        is_not_local,
        "transformer_impl",
    ),
    Experiment(
        phrase("the same steps with --accumulate-allreduce-grads-in-fp32"),
        _predict(clean="numerics", bad="communication operator uninitialised_or_race"),
        _sums_in_narrow_type,
    ),
    Experiment(
        phrase("the same steps with NCCL_ALGO=Ring and NCCL_NVLS_ENABLE=0"),
        CLEAN_IF_TRANSPORT,
        is_on("cuda"),
    ),
    Experiment(IN_FIXED_ORDER, CLEAN_IF_TRANSPORT, is_on("npu")),
    Experiment(
        phrase("the same steps without --recompute-granularity"),
        _predict(clean="framework", bad="operator numerics data loss_or_mask"),
        _has_option("recompute_granularity"),
        "recompute_granularity",
    ),
    Experiment(
        WITHOUT_CACHE,
        _predict(
            clean="uninitialised_or_race",
            bad="hardware_persistent operator numerics data loss_or_mask framework",
        ),
        is_on_accelerator,
    ),
    Experiment(
        phrase("the same steps on other hosts"),
        _predict(
            clean="hardware_transient hardware_persistent",
            bad="operator numerics data loss_or_mask framework uninitialised_or_race state_corruption",
        ),
        lambda evidence: not evidence.went_away(),
    ),
    # A fault that went away on this host by itself may do so on any other: one clean run proves nothing.
    Experiment(
        HERE_AND_ELSEWHERE,
        _predict(clean="hardware_transient hardware_persistent", bad="uninitialised_or_race"),
        lambda evidence: evidence.went_away(),
        says=phrase(
            "the same steps several times on this host, and as often on another: bad only here points to hardware, "
            "bad on both to memory or a race; never again leaves it open"
        ),
    ),
)


def cheapest(cause: str, other: str | None, evidence: Evidence) -> str:
    """Name the cheapest experiment that separates two causes, and what each of its outcomes points to.

    Args:
        cause: its code.
        other: the code of the runner-up; None where there is none.
        evidence: what was done already.
    """
    if cause in IN_HARDWARE and (move := _move(evidence)):
        return move
    for experiment in CHEAPEST_FIRST if other else ():
        predicted = {experiment.outcomes.get(code, ""): code for code in (cause, other or "")}
        if predicted.keys() == {CLEAN, BAD} and experiment.is_open(evidence):
            return experiment.says or SEPARATES.format(
                do=_with_value(experiment.do, experiment.option, evidence),
                clean=cause_words(predicted[CLEAN]),
                bad=cause_words(predicted[BAD]),
            )
    trial = next(trial for trial in ALONE[cause] if trial.is_open(evidence))
    return EXPECTS.format(do=_with_value(trial.do, trial.option, evidence), outcome=trial.outcome)


def _move(evidence: Evidence) -> str:
    """The run has tried the next steps already: one rank was bad again in them. Empty where a device was compared."""
    if len(evidence.ranks.bad_before) != 1 or any(each.peer in ("bad", "finite") for each in evidence.arbitrations):
        return ""
    (rank,) = evidence.ranks.bad_before
    before = history.steps_before(rank, evidence)
    steps = [*before, evidence.step]
    return MOVE.format(number=len(steps), rank=rank, steps=", ".join(map(str, steps))) if before else ""


def _with_value(do: str, option: str, evidence: Evidence) -> str:
    """A flag stands beside the value it has now, where that is known."""
    value = evidence.host_options.get(option)
    return do if value is None else NOW.format(do=do, value=value)
