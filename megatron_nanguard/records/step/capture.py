"""One rank's part of a saved step: `capture/rank00005.json`, with its tensors in `rank00005.safetensors` beside it."""

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
        path: keys from the micro-batch to the value, each as JSON; empty for the micro-batch itself.
        kind: its type; "left_out" for a value that cannot be saved in these files.
        text: the value, the name of a tensor, or the type of a value that is left out; empty for containers, and for
            sample text that is not saved.
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
    """One micro-batch as a data iterator returned it.

    Attributes:
        leaves: each container before its content.
    """

    leaves: tuple[Leaf, ...]


@dataclass(frozen=True)
class CapturedIterator:
    """The micro-batches that one data iterator returned in the step.

    Attributes:
        items: in order.
    """

    items: tuple[CapturedItem, ...]


@dataclass(frozen=True)
class CapturedBatch:
    """The data of a step on one rank.

    Attributes:
        iterators: each data iterator once.
        chunks: the number of the iterator for each entry of the schedule's argument; null where there was none.
        is_list: whether the argument was a list, with one entry per model chunk.
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
        tensors: names of its inputs in `digests`.
    """

    operator: str
    module: str
    phase: str
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class CapturedRandom:
    """The parts of the random states that are not in tensors.

    Attributes:
        python_version: version of the form of Python's state.
        python_gauss: a normal number that was drawn in advance; null without one.
        numpy: name of numpy's generator, its position, whether a normal number was drawn in advance, and that number;
            null where numpy was not imported.
        tracker: names of the states in Megatron's random tracker.
        current: the state that was current in the tracker; null without one.
    """

    python_version: int
    python_gauss: float | None
    numpy: tuple[str, int, int, float] | None
    tracker: tuple[str, ...]
    current: str | None


@dataclass(frozen=True, kw_only=True)
class CaptureFile:
    """What one rank saved of a step: its state before the step, and digests of the gradients of the step.

    Attributes:
        schema_version: form of this file.
        step: as the training log counts it.
        coordinates: of the rank in the parallel layout.
        sizes: the parallel layout.
        level: "ids" for digests alone; "step" with micro-batches and random states; "full" with model and optimizer.
        num_microbatches: micro-batches of the step.
        batch: micro-batches that the data iterators returned.
        calls: the suspect calls of this rank.
        digests: of tensors of the batch and of the calls by name, 16 hex digits each.
        random: the random states before the step; null where they are not part of the level.
        numbers: loss scalers and step counts of the optimizer by name.
        gradients: digest of each parameter's gradient after the first pass, as the optimizer would have got it.
        norms: norm of each parameter's gradient just before the reduction, where one was taken.
        left_out: parts of the level that could not be saved, each with the reason.
        is_redacted: whether tensors and sample text were stripped.
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
    """Path of a rank's record in the directory of the incident: `capture/rank00005.json`."""
    return f"{DIRECTORY}/rank{rank:05d}.json"


def without_samples(record: CaptureFile) -> CaptureFile:
    """The record without sample text, marked as redacted: its tensors are to be stripped too."""
    iterators = tuple(CapturedIterator(tuple(map(_without_text, one.items))) for one in record.batch.iterators)
    return replace(record, batch=replace(record.batch, iterators=iterators), is_redacted=True)


def _without_text(item: CapturedItem) -> CapturedItem:
    return CapturedItem(tuple(replace(leaf, text="") if leaf.kind == "str" else leaf for leaf in item.leaves))
