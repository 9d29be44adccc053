"""Load a captured step into the model of this job.

step = megatron_nanguard.reload_step("nanguard", model, optimizer)
forward_backward(data_iterator=step.data_iterator, num_microbatches=step.num_microbatches, ...)
print(step.compare())    # rank 5, step 3: 46 of 46 gradients are the same bit for bit
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from megatron_nanguard.capture import Captured, random_state_tensors, read
from megatron_nanguard.capture.batch_leaves import put_together
from megatron_nanguard.capture.model_state import gradients_by_name, norms_by_name
from megatron_nanguard.capture.model_state import put_back as put_state_back
from megatron_nanguard.device import device_of
from megatron_nanguard.errors import ReplayError
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.megatron_api.model_chunks import chunks_of
from megatron_nanguard.megatron_api.optimizer_state import put_numbers_back
from megatron_nanguard.megatron_api.parallel import global_rank
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer, ModelChunk
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.postmortem.search import find_incident
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.reloading.comparison import Comparison
from megatron_nanguard.replay.data_iterators import copied
from megatron_nanguard.replay.digests import named_digests
from megatron_nanguard.sentinel.gradient_norms import BucketNorms
from megatron_nanguard.topology.coordinates import read as read_coordinates


class ReloadedStep:
    """The captured step of one rank, ready to run.

    Args:
        captured: what the rank saved.
        chunks: the model chunks of this job, with the saved state in them.
        names: map of their parameters.
    Attributes:
        step: as the training log counted it.
        num_microbatches: argument for the schedule.
        device: of the model.
        data_iterator: argument for the schedule: an iterator, a list of them or None, as in the run.
    """

    def __init__(self, captured: Captured, chunks: Sequence[ModelChunk], names: ParameterMap) -> None:
        self._captured, self._names = captured, names
        record = captured.record
        self.step = record.step
        self.num_microbatches = record.num_microbatches
        self.device = next(chunks[0].parameters()).device
        items = put_together(record.batch.iterators, captured.tensors, self.device)
        iterators = [_handed_out(one) for one in items]
        places = [None if number is None else iterators[number] for number in record.batch.chunks]
        self.data_iterator: Any = places if record.batch.is_list else places[0]

    def compare(self, before_reduction: Sequence[BucketNorms] = ()) -> Comparison:
        """Compare the gradients now with those of the captured step.

        Args:
            before_reduction: norms of this pass.
        Sync: one host read per parameter.
        """
        now = named_digests(gradients_by_name(self._names))
        return Comparison.of(self._captured.record, now, norms_by_name(before_reduction, self._names))


def reload_step(
    directory: str | Path, model: ModelChunk | Sequence[ModelChunk], optimizer: MegatronOptimizer | None = None
) -> ReloadedStep:
    """Load a captured step into a model of the same layout and arguments. Run its forward-backward pass next.

    Args:
        directory: of `--nanguard-dir`, of a run or of an incident, written with `--nanguard-capture full`. One that was
            written with `step` holds no weights: the model keeps its own.
        model: chunk or list of chunks, as the schedule takes it.
        optimizer: as Megatron's factory returned it; without it loss scale, main parameters and moments are not loaded.
    Raises:
        PostmortemError: nothing was captured there, or it cannot be read.
        ReplayError: the captured step is of another model or layout.
    """
    chunks = chunks_of(model)
    captured = read(find_incident(Path(directory)), global_rank())
    coordinates, sizes = read_coordinates(chunks)
    _check_place(captured, coordinates, sizes)
    names = ParameterMap(chunks, sizes)
    step = ReloadedStep(captured, chunks, names)
    put_state_back(captured.tensors, chunks, names, optimizer)
    put_numbers_back(optimizer, captured.record.numbers)
    host_program.set_log_step(step.step)
    # Last: no random number may be drawn between this and the pass.
    assert captured.record.random is not None, "read() takes nothing without random states"
    random = random_state_tensors.put_together(captured.record.random, captured.tensors)
    for put_back in random.put_back(device_of(step.device.type)).values():
        put_back()
    return step


def _check_place(captured: Captured, coordinates: Coordinates, sizes: ParallelSizes) -> None:
    record = captured.record
    if (record.coordinates, record.sizes) != (coordinates, sizes):
        raise ReplayError(
            f"rank {coordinates.rank} was {_words(record.coordinates, record.sizes)} when the step was saved, "
            f"here it is {_words(coordinates, sizes)}; start as many ranks in the same layout"
        )


def _words(coordinates: Coordinates, sizes: ParallelSizes) -> str:
    return f"{coordinates.label(sizes)} of {sizes.world} ranks (TP{sizes.tp} CP{sizes.cp} PP{sizes.pp} EP{sizes.ep})"


def _handed_out(items: Sequence[Any]) -> Iterator[Any]:
    for item in items:
        yield copied(item)
    raise ReplayError(f"the step asks for more than the {len(items)} micro-batches that were saved")
