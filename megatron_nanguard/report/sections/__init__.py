"""The sections of the report.

A section is a function of the opened incident that returns a block, or None when the incident says nothing about its
subject. Each subject has a file in this folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections import (
    causes,
    health,
    microbatches,
    next_steps,
    norms_by_layer,
    origins,
    parameters,
    propagation,
    ranks,
    reruns,
    run_facts,
    verdict,
)

Section = Callable[[OpenedIncident], Block | None]

SECTIONS: Final[dict[str, Section]] = {
    "verdict": verdict.describe,
    "causes": causes.describe,
    "advice": causes.describe_advice,
    "next_steps": next_steps.describe,
    "suspect_call": reruns.describe_suspect_call,
    "origins": origins.describe,
    "ranks": ranks.describe,
    "propagation": propagation.describe,
    "health": health.describe,
    "audit": origins.describe_audit,
    "norms_by_layer": norms_by_layer.describe,
    "microbatches": microbatches.describe,
    "replay": reruns.describe_replay,
    "notes": run_facts.describe_notes,
    "run_facts": run_facts.describe,
    "files": run_facts.describe_files,
    "parameters": parameters.describe,
}
"""Every section by its name, in the order of reading. The name is the anchor of the section in the HTML page."""
