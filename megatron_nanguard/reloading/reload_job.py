"""Run any Megatron script with hooks that load the captured step, run it, compare its gradients and end the job.

first schedule call   the captured state is loaded into the model, the schedule gets the captured micro-batches
decision point        gradients are compared; every rank prints its comparison, and all exit with the same code
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from megatron_nanguard.coordination.vote import vote
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.errors import PostmortemError, ReplayError
from megatron_nanguard.megatron_api import host_program, optimizers
from megatron_nanguard.megatron_api.bucket_state import is_dispatched
from megatron_nanguard.megatron_api.model_chunks import chunks_of
from megatron_nanguard.megatron_api.protocols import (
    AnyBucketGroup,
    MegatronOptimizer,
    ModelChunk,
    Schedule,
    ScheduleArguments,
    StepResult,
)
from megatron_nanguard.patch_points import ESSENTIAL, POINTS, release_line
from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.postmortem.job_history import job_arguments
from megatron_nanguard.records.json.record_file import read_record
from megatron_nanguard.records.run.fingerprint import FINGERPRINT_NAME, Fingerprint
from megatron_nanguard.reloading.step import ReloadedStep, reload_step
from megatron_nanguard.sentinel.gradient_norms import BeforeReduction


class ReloadJob:
    """The hooks of the job.

    Args:
        incident: directory of the incident whose step was captured.
    Attributes:
        has_compared: whether the gradients of all ranks were compared; the exit code follows from that.
    """

    def __init__(self, incident: Path) -> None:
        self._incident = incident
        self._optimizers: list[tuple[MegatronOptimizer, Sequence[ModelChunk]]] = []
        self._host_checks = host_program.HostChecks()
        self._before = BeforeReduction(per_parameter=True)
        self._step: ReloadedStep | None = None
        self.has_compared = False
        handlers = {
            "wrap_chunk": self.chunk_wrapped,
            "get_megatron_optimizer": self.optimizer_made,
            "forward_backward": self.schedule_called,
            "start_grad_sync": self.gradients_ready,
            "prepare_grads": self.decide,
            "optimizer_step": self.step,
            "validate_result": host_program.is_nan_check,
        }
        self._engine = Engine([point for point in POINTS if point.name in handlers], handlers.__getitem__, release_line)

    def install(self) -> None:
        """Register the hooks, before the script runs."""
        self._engine.install()

    def chunk_wrapped(self, chunk: ModelChunk) -> None:
        """Switch Megatron's own NaN check off: it would end the step before its gradients can be compared."""
        missing = [self._engine.declined[group] for group in ESSENTIAL if group in self._engine.declined]
        if missing:
            raise ReplayError(f"the step cannot be run with this Megatron: {'; '.join(missing)}")
        self._host_checks.switch_off([chunk])

    def optimizer_made(self, optimizer: MegatronOptimizer, chunks: Sequence[ModelChunk]) -> None:
        """Keep the optimizer, whose loss scale and main parameters are loaded later, and print changed arguments.

        The run saved its arguments at this same point; Megatron changes some of them later.
        """
        if not self._optimizers and dist.get_rank() == 0:
            for line in changed_arguments(self._incident):
                print(line, flush=True)
        self._optimizers.append((optimizer, chunks))

    def schedule_called(self, schedule: Schedule, kwargs: ScheduleArguments) -> ScheduleArguments:
        """Load the captured step, and pass its micro-batches to the schedule instead of the script's."""
        if kwargs.get("forward_only", False):
            return kwargs
        chunks = chunks_of(kwargs["model"])
        self._before.clear()
        self._step = reload_step(self._incident, chunks, self._optimizer_of(chunks))
        return {**kwargs, "data_iterator": self._step.data_iterator, "num_microbatches": self._step.num_microbatches}

    def gradients_ready(self, group: AnyBucketGroup, force_all_reduce: bool) -> None:
        """Take norms before the reduction, to tell a difference of this rank from one that the reduction brought in."""
        if self._step is not None and not is_dispatched(group):
            self._before.look(group, force_all_reduce)

    def decide(self, prepare: Callable[[], bool], optimizer: MegatronOptimizer) -> NoReturn:
        """Compare and exit, before gradients are unscaled, clipped or applied.

        Collective: all ranks.
        """
        if self._step is None:
            raise ReplayError("no call of the pipeline schedule was seen: the step cannot be run in this job")
        comparison = self._step.compare(self._before.taken())
        print(comparison, flush=True)
        differs = torch.tensor([int(not comparison.exact)], dtype=torch.int32, device=self._step.device)
        (code,) = vote(differs, Voters(tuple(range(dist.get_world_size())), None))
        self.has_compared = True
        raise SystemExit(code)

    def step(self, step: Callable[[], StepResult], optimizer: MegatronOptimizer) -> StepResult:
        """Compare here on a rank without trainable parameters, which may never call ``prepare_grads``."""
        return self.decide(lambda: True, optimizer) if optimizers.is_stub(optimizer) else step()

    def _optimizer_of(self, chunks: Sequence[ModelChunk]) -> MegatronOptimizer | None:
        known = ((optimizer, mine) for optimizer, mine in self._optimizers if any(c is m for c in chunks for m in mine))
        return next((optimizer for optimizer, _ in known), None)


def command_line(incident: Path, given: Sequence[str]) -> list[str]:
    """Return the script to run and its arguments.

    Args:
        incident: directory of the incident.
        given: a script with all its arguments; or arguments to append to those of the run, which they override.
    Raises:
        PostmortemError: the command line of the run was not saved, or its script is not there.
    """
    if given and not given[0].startswith("-"):
        return list(given)
    recorded = _fingerprint(incident).command_line
    if not recorded:
        raise PostmortemError(f"{_path(incident)} has no command line; give the script and its arguments after DIR")
    if not Path(recorded[0]).exists():
        raise PostmortemError(
            f"the run's script {recorded[0]} is not here; go to the directory it was started in, or give a script and "
            "its arguments after DIR"
        )
    return [*recorded, *given]


def changed_arguments(incident: Path) -> Iterator[str]:
    """Yield a line per argument that differs from the run; none where the arguments of one of them are not known."""
    mine = host_program.arguments()
    if mine is None or not _path(incident).exists():
        return
    before, now = job_arguments(_fingerprint(incident).arguments), job_arguments(vars(mine))
    for name in sorted(before.keys() | now.keys()):
        seen, was = str(now.get(name)), before.get(name)
        if seen != was:
            yield f"argument {name} is {seen} here, it was {was}"


def _path(incident: Path) -> Path:
    return incident.absolute().parents[1] / FINGERPRINT_NAME


def _fingerprint(incident: Path) -> Fingerprint:
    path = _path(incident)
    if not path.exists():
        raise PostmortemError(f"{path} is not there; give the script and its arguments after DIR")
    return read_record(Fingerprint, path)
