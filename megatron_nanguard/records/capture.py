"""One rank's part of a step, saved: `capture/rank00005.json`; its tensors lie beside it in `rank00005.safetensors`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes

DIRECTORY: Final = "capture"
TENSORS_SUFFIX: Final = ".safetensors"

Level = Literal["ids", "step", "full"]
LeafKind = Literal["tensor", "none", "bool", "int", "float", "str", "dict", "list", "tuple", "left_out"]


@dataclass(frozen=True)
class Leaf:
    """One value of a micro-batch, or one of the containers that hold values.

    Attributes:
        path: the keys on the way to it, each as JSON; empty for the micro-batch itself.
        kind: its type; "left_out" for what has no form in these files.
        text: the value, the name of a tensor, or the type of what is left out; empty for containers and where sample
            text is not kept.
        shape: of a tensor.
        dtype: of a tensor, without "torch.".
        device: type of the device that a tensor was on.
    """

    path: tuple[str, ...]
    kind: LeafKind
    text: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""


@dataclass(frozen=True)
class CapturedItem:
    """One micro-batch as a data iterator handed it out.

    Attributes:
        leaves: containers before what they hold.
    """

    leaves: tuple[Leaf, ...]


@dataclass(frozen=True)
class CapturedIterator:
    """What one data iterator handed out in the step.

    Attributes:
        items: in order.
    """

    items: tuple[CapturedItem, ...]


@dataclass(frozen=True)
class CapturedBatch:
    """The data of a step on one rank.

    Attributes:
        iterators: each data iterator once.
        chunks: for each place of the schedule's argument the iterator there; null where there was none.
        is_list: the argument was a list, one place per model chunk.
    """

    iterators: tuple[CapturedIterator, ...] = ()
    chunks: tuple[int | None, ...] = ()
    is_list: bool = False


@dataclass(frozen=True)
class CapturedCall:
    """A suspect call without its values.

    Attributes:
        operator: such as "aten.log.default".
        module: global module path; empty outside of any.
        phase: of the step.
        tensors: its inputs, by the names that digests give them; nothing else of them is here.
    """

    operator: str
    module: str
    phase: str
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class CapturedRandom:
    """What random states are beside the numbers in their tensors.

    Attributes:
        python_version: of the state's form.
        python_gauss: a normal number that was drawn in advance; null without one.
        numpy: name of numpy's generator, its position, whether a normal number was drawn in advance, and that number;
            null where numpy was not imported.
        tracker: names of Megatron's states of the device.
        current: the one that the tracker called current; null without one.
    """

    python_version: int
    python_gauss: float | None
    numpy: tuple[str, int, int, float] | None
    tracker: tuple[str, ...]
    current: str | None


@dataclass(frozen=True, kw_only=True)
class CaptureFile:
    """What one rank saved of a step at its entry, and what the step's gradients were.

    Attributes:
        schema_version: form of this file.
        step: as the training log counts it.
        coordinates: place of the rank in the parallel layout.
        sizes: the parallel layout.
        level: "ids" for digests alone; "step" with micro-batches and random states; "full" with model and optimizer.
        num_microbatches: micro-batches of the step.
        batch: what the data iterators handed out.
        calls: the suspect calls of this rank.
        digests: of tensors of the batch and of the calls by name, 16 hex digits each.
        random: the random states at entry; null where they were not asked for.
        numbers: loss scalers and step counts of the optimizer by name.
        gradients: digest of each parameter's gradient after the first pass, as the optimizer would have got it.
        norms: norm of each parameter's gradient just before the reduction, where one was taken.
        left_out: what is not here though it was asked for, each with the reason.
        is_redacted: tensors and sample text were stripped.
        versions: versions of the packages that matter.
    """

    schema_version: int = SCHEMA_VERSION
    step: int
    coordinates: Coordinates
    sizes: ParallelSizes
    level: Level
    num_microbatches: int
    batch: CapturedBatch = CapturedBatch()
    calls: tuple[CapturedCall, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    random: CapturedRandom | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, str] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    is_redacted: bool = False
    versions: dict[str, str] = field(default_factory=dict)


def file_name(rank: int) -> str:
    """Where the record of a rank lies in the directory of the incident: `capture/rank00005.json`."""
    return f"{DIRECTORY}/rank{rank:05d}.json"


def without_samples(record: CaptureFile) -> CaptureFile:
    """The record as it may be shown to others: its sample text is gone, and its tensors are said to be."""
    iterators = tuple(CapturedIterator(tuple(map(_without_text, one.items))) for one in record.batch.iterators)
    return replace(record, batch=replace(record.batch, iterators=iterators), is_redacted=True)


def _without_text(item: CapturedItem) -> CapturedItem:
    return CapturedItem(tuple(replace(leaf, text="") if leaf.kind == "str" else leaf for leaf in item.leaves))
