"""What to do next, the cheapest step first, with the commands that do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from megatron_nanguard.diagnosis.next_steps.first_look import CONFIRM
from megatron_nanguard.postmortem.bundles import BUNDLE_NAME, is_runnable
from megatron_nanguard.records.causes import Cause, Family, RankedCause, family_of
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.report.blocks import Block, Point
from megatron_nanguard.report.opened_incident import OpenedIncident

SCRIPT: Final = f"{BUNDLE_NAME}/repro.py"
"""How the steps of the diagnosis name the script that runs the suspect call."""
SCREEN: Final = phrase("test devices and links without the model, on the hosts of the job")
STOP_AND_SCREEN: Final = phrase("stop the job, then test devices and links without the model, on the hosts of the job")
COLLECT: Final = phrase("copy the files of {ranks} into this directory, then run the report again")
SHOWN_STEPS: Final = 5


def describe(opened: OpenedIncident) -> Block | None:
    """List the steps; None where the verdict already shows the only one."""
    steps = list(_steps(opened))[:SHOWN_STEPS]
    if len(steps) == 1 and not opened.incident.missing_ranks:
        return None
    points = tuple(Point(text, f"{number}.", command=command) for number, (text, command) in enumerate(steps, start=1))
    return Block(phrase("Next steps"), points=points) if points else None


def reproduction(opened: OpenedIncident) -> str:
    """Return the command that runs the suspect call alone; empty where the call was not saved."""
    bundle = opened.absolute_directory / BUNDLE_NAME
    return f"python {bundle / 'repro.py'}" if is_runnable(bundle) else ""


def useful_reproduction(opened: OpenedIncident) -> str:
    """Return `reproduction`, but empty where an input has NaN or Inf, since the call is then bad on any device."""
    calls = opened.incident.arbitrations
    return "" if calls and calls[0].inputs_bad else reproduction(opened)


def screening(opened: OpenedIncident) -> str:
    """Return the command that tests devices and links; empty where they are no leading cause of the incident."""
    incident = opened.incident
    if not any(family_of(cause.cause) in (Family.HARDWARE, Family.TRANSPORT) for cause in _leading(incident)):
        return ""
    sizes, hosts = incident.sizes, max(1, incident.num_hosts)
    axes = {"tp": sizes.tp, "pp": sizes.pp, "cp": sizes.cp, "ep": sizes.ep}
    layout = "".join(f" --{axis} {size}" for axis, size in axes.items() if size > 1)
    nodes = f" --nnodes {hosts}" if hosts > 1 else ""
    return f"torchrun{nodes} --nproc-per-node {sizes.world // hosts} -m megatron_nanguard screen{layout}"


def is_running(incident: Incident) -> bool:
    """Whether the job went on after the incident, so that it may still hold its devices."""
    return incident.policy.action in ("skip", "continue")


def without_command(step: str) -> str:
    """Remove the command at the end of a step of the diagnosis; the report shows it on a line of its own."""
    return step.removesuffix(CONFIRM.format(look=""))


def _steps(opened: OpenedIncident) -> Iterator[tuple[str, str]]:
    """Yield each step in words with its command; the command is empty where there is none."""
    reproduce, screen = reproduction(opened), screening(opened)
    proposed = list(dict.fromkeys(cause.next for cause in opened.incident.causes if cause.next))
    for step in proposed:
        if reproduce and SCRIPT in step:
            yield without_command(step), reproduce
        else:
            yield step, ""
    if reproduce and not any(SCRIPT in step for step in proposed):
        yield phrase("run the suspect call alone"), reproduce
    if screen:
        yield STOP_AND_SCREEN if is_running(opened.incident) else SCREEN, screen
    if opened.incident.missing_ranks:
        yield COLLECT.format(ranks=name_ranks(opened.incident.missing_ranks)), ""


def _leading(incident: Incident) -> tuple[RankedCause, ...]:
    """Return the likeliest cause, or the two candidates where the diagnosis is undecided."""
    is_undecided = any(cause.cause == Cause.UNDECIDED for cause in incident.causes)
    return tuple(cause for cause in incident.causes if cause.cause != Cause.UNDECIDED)[: 2 if is_undecided else 1]
