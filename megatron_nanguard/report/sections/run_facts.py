"""Plain facts at the end of the report: the run and the step, where the files are, and notes."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.postmortem.search import MERGED_NAME
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.incident import DeviceCount
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.formatting import counted, number
from megatron_nanguard.report.opened_incident import OpenedIncident

KINDS: Final = {
    Kind.GRADIENT_BEFORE_REDUCTION: phrase("in the gradients of a rank, before the data-parallel reduction"),
    Kind.GRADIENT_AFTER_REDUCTION: phrase("in the reduced gradients, every local one being finite"),
    Kind.LOSS: phrase("in a loss, every gradient being finite"),
    Kind.NORM_OVERFLOW: phrase("in the sum of squares, every gradient being finite"),
    Kind.DEAD_STEP: phrase("in the gradient norm alone, after the step had been applied"),
}
SATURATION: Final = phrase(
    "devices in saturation mode turn overflow into the largest number: every check for NaN and Inf is blind there; "
    "set INF_NAN_MODE_ENABLE=1 before the start"
)


def describe(opened: OpenedIncident) -> Block:
    """Show which run and step it was, with the numbers that are known."""
    incident = opened.incident
    facts = (
        (phrase("run"), incident.run_id),
        (phrase("started"), opened.fingerprint.started if opened.fingerprint else ""),
        (phrase("step"), str(incident.step)),
        (phrase("first seen"), KINDS[incident.kind]),
        (phrase("layout"), _layout(incident.sizes)),
        (phrase("gradient norm"), _known(incident.grad_norm)),
        (phrase("clip coefficient"), _known(incident.clip_coefficient)),
        (phrase("loss scale"), _known(incident.loss_scale)),
        *((phrase("device"), _device(device)) for device in incident.devices),
        (phrase("versions"), ", ".join(f"{name} {version}" for name, version in incident.versions.items())),
        (phrase("policy"), incident.policy.words),
    )
    return Block(phrase("Run and step"), rows=tuple(fact for fact in facts if fact[1]))


def describe_files(opened: OpenedIncident) -> Block:
    """Show where the evidence is: the merged file of all ranks, and the files of single ranks."""
    incident = opened.incident
    rows: list[tuple[str, str]] = [(phrase("directory"), str(opened.absolute_directory))]
    # An unknown action means that the job died before any rank wrote the merged file.
    if incident.policy.action != "unknown":
        rows.append((phrase("all ranks"), MERGED_NAME))
    if incident.files:
        first, more = incident.files[0], len(incident.files) - 1
        rows.append((phrase("each rank"), phrase("{file} and {more} more", file=first, more=more) if more else first))
    return Block(phrase("Files"), rows=tuple(rows))


def describe_notes(opened: OpenedIncident) -> Block | None:
    """Show the notes of the ranks and of the merge, with a warning where devices hide overflow."""
    incident = opened.incident
    notes = list(incident.notes)
    if any(device.overflow_mode == "saturation" for device in incident.devices):
        notes.append(SATURATION)
    return Block(phrase("Notes"), notes=tuple(notes)) if notes else None


def _known(value: float | None) -> str:
    return "" if value is None else number(value)


def _device(device: DeviceCount) -> str:
    words = f"{device.num_ranks} x {device.name}"
    if device.overflow_mode == "not_applicable":
        return words
    return phrase("{device}, overflow mode {mode}", device=words, mode=device.overflow_mode)


def _layout(sizes: ParallelSizes) -> str:
    """Write the parallel axes of more than one rank: "8 ranks: TP2 PP2 VPP2 DP2"."""
    axes = {"TP": sizes.tp, "CP": sizes.cp, "EP": sizes.ep, "PP": sizes.pp, "VPP": sizes.vpp, "DP": sizes.dp}
    named = " ".join(f"{axis}{size}" for axis, size in axes.items() if size > 1)
    world = counted(sizes.world, "rank")
    return phrase("{world}: {axes}", world=world, axes=named) if named else world
