"""What is said of an incident: sections in the order they are read.

A section is one file with `describe(opened)`, which gives a block, or None when it has nothing to say; a renderer lays
blocks out and knows nothing of incidents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from megatron_nanguard.printable import spelled_for
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.lang import Translator
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.rendering.text import render
from megatron_nanguard.report.sections import (
    advice,
    audit,
    causes,
    files,
    gradient_norms,
    health,
    microbatches,
    next_steps,
    notes,
    origins,
    parameters,
    propagation,
    ranks,
    replay,
    run_facts,
    suspect_call,
    verdict,
)

Section = Callable[[OpenedIncident], Block | None]

SECTIONS: tuple[Section, ...] = (
    verdict.describe,
    causes.describe,
    advice.describe,
    next_steps.describe,
    suspect_call.describe,
    origins.describe,
    ranks.describe,
    propagation.describe,
    health.describe,
    audit.describe,
    gradient_norms.describe,
    microbatches.describe,
    replay.describe,
    notes.describe,
    run_facts.describe,
    files.describe,
    parameters.describe,
)


def blocks_of(opened: OpenedIncident, lang: str = "en") -> list[Block]:
    """Every section that has something to say, in one of the LANGUAGES."""
    translator = Translator(lang, opened.incident.phrases)
    return [translator.translated(block) for section in SECTIONS if (block := section(opened)) is not None]


def print_report(opened: OpenedIncident, stream: TextIO, *, has_colour: bool = True, lang: str = "en") -> None:
    """Print one incident: for eyes on a terminal, as plain text into anything else.

    Args:
        opened: the incident, with a row per rank.
        stream: where to.
        has_colour: colours are wanted; NO_COLOR in the environment is respected all the same.
        lang: one of the LANGUAGES.
    """
    blocks = blocks_of(opened, lang)
    if not stream.isatty():
        stream.write(spelled_for(render(blocks), stream.encoding))
        return
    # What draws on terminals takes a tenth of a second to import, and a pipe does without.
    from megatron_nanguard.report.rendering.terminal import console_on, show

    show(blocks, console_on(stream, has_colour=has_colour))
