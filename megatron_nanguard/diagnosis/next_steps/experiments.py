"""Experiments that separate two causes, which predict different outcomes; the cheapest first.

Each changes one thing, so that the outcome can be read. A flag is never proposed with the value that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.history import recurrences
from megatron_nanguard.diagnosis.joining.origins import is_reducing
from megatron_nanguard.diagnosis.next_steps import confirmations
from megatron_nanguard.diagnosis.origin_facts import OF_ACTIVATIONS
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.phrase import phrase

BEARING_OPTIONS: Final = (
    "overlap_grad_reduce",
    "overlap_param_gather",
    "recompute_granularity",
    "transformer_impl",
    "attention_backend",
    "accumulate_allreduce_grads_in_fp32",
)
"""Options of Megatron that an experiment sets to another value."""

MEMORY: Final = Cause.UNINITIALISED_OR_RACE
HARDWARE: Final = (Cause.HARDWARE_TRANSIENT, Cause.HARDWARE_PERSISTENT)
VALUES: Final = (Cause.NUMERICS, Cause.LOSS_OR_MASK, Cause.DATA, Cause.STATE_CORRUPTION)


class Experiment(NamedTuple):
    """One thing to try.

    Attributes:
        do: the flag or command.
        clean: the causes that predict a clean outcome.
        bad: the causes that predict the fault again; a cause that is in neither predicts nothing.
        is_open: whether it makes sense here and was not done already.
        option: of Megatron that it changes; empty for none.
        says: the whole sentence, where "clean" and "bad again" do not say it all.
    """

    do: str
    clean: tuple[Cause, ...]
    bad: tuple[Cause, ...]
    is_open: Callable[[Case], bool]
    option: str = ""
    says: str = ""

    def separates(self, cause: str, rival: str) -> bool:
        """Whether the two causes predict different outcomes."""
        return (cause in self.clean and rival in self.bad) or (cause in self.bad and rival in self.clean)


def _has_no_reference(case: Case) -> bool:
    calls = case.incident.arbitrations
    return case.has_saved_call and all(call.reference_fp64 not in ("bad", "finite") for call in calls)


def _has_no_peer(case: Case) -> bool:
    return case.has_saved_call and all(call.peer not in ("bad", "finite") for call in case.incident.arbitrations)


def _has_option(option: str) -> Callable[[Case], bool]:
    return lambda case: case.host_options.get(option, "None") not in ("False", "None")


def _is_in_fused_attention(case: Case) -> bool:
    is_unfused = case.host_options.get("attention_backend", "").endswith("unfused")
    return not is_unfused and any("attention" in origin.module for origin in case.incident.origin)


def _sums_gradients_in_narrow_type(case: Case) -> bool:
    is_wide = case.host_options.get("accumulate_allreduce_grads_in_fp32") == "True"
    sums = [origin for origin in case.incident.origin if is_reducing(origin.operator)]
    return not is_wide and any(origin.phase not in OF_ACTIVATIONS for origin in sums)


EXPERIMENTS: Final = (
    Experiment(
        confirmations.ON_THE_CPU,
        clean=(Cause.OPERATOR, *HARDWARE, MEMORY, Cause.COMMUNICATION),
        bad=VALUES,
        is_open=_has_no_reference,
    ),
    Experiment(
        phrase("python bundle/repro.py --device cuda (npu on Ascend) on another host"),
        clean=(*HARDWARE, MEMORY, Cause.COMMUNICATION),
        bad=(Cause.OPERATOR, *VALUES),
        is_open=_has_no_peer,
    ),
    Experiment(
        phrase("the next steps with --nanguard-on-nonfinite skip"),
        clean=(
            Cause.DATA,
            Cause.LOSS_OR_MASK,
            Cause.LOSS_SCALER,
            Cause.HARDWARE_TRANSIENT,
            Cause.CHECKER_ARTIFACT,
        ),
        bad=(Cause.STATE_CORRUPTION, Cause.HARDWARE_PERSISTENT),
        is_open=lambda case: not recurrences(case),
    ),
    Experiment(
        phrase("the same steps with --initial-loss-scale 4096"),
        clean=(Cause.LOSS_SCALER,),
        bad=(Cause.OPERATOR, Cause.COMMUNICATION, *VALUES),
        is_open=lambda case: case.scaler is not None and case.incident.replay.lower_scale == "not_tried",
    ),
    Experiment(
        confirmations.WAITING_ALWAYS,
        clean=(MEMORY,),
        bad=(Cause.OPERATOR, *VALUES, Cause.FRAMEWORK, Cause.COMMUNICATION, Cause.HARDWARE_PERSISTENT),
        is_open=confirmations.waits_on_accelerator,
    ),
    Experiment(
        phrase("the same steps without --overlap-grad-reduce"),
        clean=(MEMORY,),
        bad=(Cause.COMMUNICATION, Cause.NUMERICS, Cause.OPERATOR, Cause.STATE_CORRUPTION, Cause.DATA),
        is_open=_has_option("overlap_grad_reduce"),
    ),
    Experiment(
        phrase("the same steps without --overlap-param-gather"),
        clean=(MEMORY, Cause.FRAMEWORK),
        bad=(Cause.STATE_CORRUPTION, Cause.OPERATOR, Cause.NUMERICS, Cause.DATA),
        is_open=_has_option("overlap_param_gather"),
    ),
    Experiment(
        phrase("the same steps with --attention-backend unfused"),
        clean=(Cause.OPERATOR,),
        bad=(Cause.NUMERICS, Cause.LOSS_OR_MASK, Cause.DATA, MEMORY, Cause.HARDWARE_TRANSIENT),
        is_open=_is_in_fused_attention,
        option="attention_backend",
    ),
    Experiment(
        confirmations.UNFUSED_LAYERS,
        clean=(Cause.OPERATOR,),
        bad=(*VALUES, Cause.HARDWARE_PERSISTENT),
        is_open=confirmations.has_fused_layers,
        option="transformer_impl",
    ),
    Experiment(
        phrase("the same steps with --accumulate-allreduce-grads-in-fp32"),
        clean=(Cause.NUMERICS,),
        bad=(Cause.COMMUNICATION, Cause.OPERATOR, MEMORY),
        is_open=_sums_gradients_in_narrow_type,
    ),
    Experiment(
        phrase("the same steps with NCCL_ALGO=Ring and NCCL_NVLS_ENABLE=0"),
        clean=(Cause.COMMUNICATION,),
        bad=(Cause.OPERATOR, *VALUES),
        is_open=confirmations.is_on("cuda"),
    ),
    Experiment(
        confirmations.IN_FIXED_ORDER,
        clean=(Cause.COMMUNICATION,),
        bad=(Cause.OPERATOR, *VALUES),
        is_open=confirmations.is_on("npu"),
    ),
    Experiment(
        phrase("the same steps without --recompute-granularity"),
        clean=(Cause.FRAMEWORK,),
        bad=(Cause.OPERATOR, Cause.NUMERICS, Cause.DATA, Cause.LOSS_OR_MASK),
        is_open=_has_option("recompute_granularity"),
        option="recompute_granularity",
    ),
    Experiment(
        confirmations.WITHOUT_CACHE,
        clean=(MEMORY,),
        bad=(
            Cause.HARDWARE_PERSISTENT,
            Cause.OPERATOR,
            Cause.NUMERICS,
            Cause.DATA,
            Cause.LOSS_OR_MASK,
            Cause.FRAMEWORK,
        ),
        is_open=confirmations.is_on_accelerator,
    ),
    Experiment(
        phrase("the same steps on other hosts"),
        clean=HARDWARE,
        bad=(Cause.OPERATOR, *VALUES, Cause.FRAMEWORK, MEMORY),
        is_open=lambda case: not case.went_away,
    ),
    # A fault that went away on this host by itself may do so on any other: one clean run proves nothing.
    Experiment(
        confirmations.HERE_AND_ELSEWHERE,
        clean=HARDWARE,
        bad=(MEMORY,),
        is_open=lambda case: case.went_away,
        says=phrase(
            "the same steps several times on this host, and as often on another: bad only here points to hardware, "
            "bad on both to memory or a race; never again leaves it open"
        ),
    ),
)
