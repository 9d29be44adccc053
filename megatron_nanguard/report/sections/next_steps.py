"""What to do now, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from megatron_nanguard.postmortem.bundles import BUNDLE_NAME
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.report.blocks import Block, Point
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections.commands import goes_on, reproduction, screening, without_command

SCRIPT: Final = f"{BUNDLE_NAME}/repro.py"
"""As the steps of the diagnosis name it."""
REPRODUCE: Final = phrase("run the accused call alone")
SCREEN: Final = phrase("try devices and links without the model, on the hosts of the job")
STOP_AND_SCREEN: Final = phrase("stop the job, then try devices and links without the model, on the hosts of the job")
COLLECT: Final = phrase("bring the files of {ranks} into this directory and report again")
SHOWN_STEPS: Final = 5


def describe(opened: OpenedIncident) -> Block | None:
    """Try what would tell the causes apart, run the accused call alone; one step alone stands in the verdict."""
    steps = list(_steps(opened))[:SHOWN_STEPS]
    if len(steps) == 1 and not opened.incident.missing_ranks:
        return None
    points = tuple(Point(text, f"{number}.", command=command) for number, (text, command) in enumerate(steps, start=1))
    return Block(phrase("Next steps"), points=points) if points else None


def _steps(opened: OpenedIncident) -> Iterator[tuple[str, str]]:
    """What to do, and the command that does it where there is one."""
    reproduce, screen = reproduction(opened), screening(opened)
    told = list(dict.fromkeys(cause.next for cause in opened.incident.causes if cause.next))
    for step in told:
        if reproduce and SCRIPT in step:
            yield without_command(step), reproduce
        else:
            yield step, ""
    if reproduce and not any(SCRIPT in step for step in told):
        yield REPRODUCE, reproduce
    if screen:
        yield STOP_AND_SCREEN if goes_on(opened.incident) else SCREEN, screen
    if opened.incident.missing_ranks:
        yield COLLECT.format(ranks=name_ranks(opened.incident.missing_ranks)), ""
