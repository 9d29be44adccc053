"""What happened, at which step, in which run."""

from __future__ import annotations

from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.incident import DeviceCount, Incident
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.wording import number


def describe(incident: Incident) -> Block:
    """The summary, and the numbers of the step that are known."""
    facts = (
        ("run", incident.run_id),
        ("step", str(incident.step)),
        ("kind", incident.kind.value.replace("_", " ")),
        ("layout", _layout(incident.sizes)),
        ("gradient norm", _known(incident.grad_norm)),
        ("clip coefficient", _known(incident.clip_coefficient)),
        ("loss scale", _known(incident.loss_scale)),
        *(("device", _device(device)) for device in incident.devices),
    )
    return Block("What happened", text=(incident.summary,), rows=tuple(fact for fact in facts if fact[1]))


def _known(value: float | None) -> str:
    return "" if value is None else number(value)


def _device(device: DeviceCount) -> str:
    words = f"{device.num_ranks} x {device.name}"
    if device.overflow_mode == "not_applicable":
        return words
    return f"{words}, overflow mode {device.overflow_mode}"


def _layout(sizes: ParallelSizes) -> str:
    """Sizes of the axes that exist: "8 ranks: TP2 PP2 DP2"."""
    axes = {"TP": sizes.tp, "CP": sizes.cp, "EP": sizes.ep, "PP": sizes.pp, "DP": sizes.dp}
    named = " ".join(f"{axis}{size}" for axis, size in axes.items() if size > 1)
    return f"{sizes.world} ranks: {named}" if named else f"{sizes.world} rank"
