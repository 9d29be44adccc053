"""The command that helps next, whole and for any directory, so that it can be copied."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.diagnosis.looking import CONFIRM
from megatron_nanguard.postmortem.bundles import BUNDLE_NAME, is_runnable
from megatron_nanguard.records.incident import Incident, RankedCause
from megatron_nanguard.report.formatting import UNDECIDED
from megatron_nanguard.report.opened_incident import OpenedIncident

SCREENED: Final = ("hardware_transient", "hardware_persistent", "communication")
"""Causes that speak of devices and links, which can be tried without the model."""
REPRODUCE: Final = "python {script}"
SCREEN: Final = "torchrun --nproc-per-node {ranks} -m megatron_nanguard screen{layout}"
NODES: Final = "torchrun --nnodes {hosts} --nproc-per-node {ranks} -m megatron_nanguard screen{layout}"


def reproduction(opened: OpenedIncident) -> str:
    """Run the accused call alone; empty where it was not saved."""
    bundle = opened.home / BUNDLE_NAME
    return REPRODUCE.format(script=bundle / "repro.py") if is_runnable(bundle) else ""


def telling(opened: OpenedIncident) -> str:
    """The same where it tells something: a call that was given NaN or Inf is bad everywhere."""
    calls = opened.incident.arbitrations
    return "" if calls and calls[0].inputs_bad else reproduction(opened)


def goes_on(incident: Incident) -> bool:
    """Whether the job holds its devices still, as far as is known."""
    return incident.policy.action in ("skip", "continue")


def without_command(step: str) -> str:
    """A step of the diagnosis whose command is shown below it."""
    return step.removesuffix(CONFIRM.format(look=""))


def screening(opened: OpenedIncident) -> str:
    """Try devices and links of the job's layout; empty where no cause speaks of them."""
    incident = opened.incident
    if not any(cause.cause in SCREENED for cause in _leading(incident)):
        return ""
    sizes, hosts = incident.sizes, max(1, incident.num_hosts)
    axes = {"tp": sizes.tp, "pp": sizes.pp, "cp": sizes.cp, "ep": sizes.ep}
    layout = "".join(f" --{axis} {size}" for axis, size in axes.items() if size > 1)
    form = SCREEN if hosts == 1 else NODES
    return form.format(hosts=hosts, ranks=sizes.world // hosts, layout=layout)


def _leading(incident: Incident) -> tuple[RankedCause, ...]:
    """The likeliest cause, or the two candidates where it is undecided."""
    is_open = any(cause.cause == UNDECIDED for cause in incident.causes)
    return tuple(cause for cause in incident.causes if cause.cause != UNDECIDED)[: 2 if is_open else 1]
