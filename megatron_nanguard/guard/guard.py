"""Builds the rooms and wires them: patch point to handler. Owns on and off; knows no stage."""

from __future__ import annotations

import atexit
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import leave_now
from megatron_nanguard.guard.steps import Steps
from megatron_nanguard.guarded_run import GuardedRun, Options, RunHandshake
from megatron_nanguard.guarded_run.drilling import UNFIRED_EXIT_CODE
from megatron_nanguard.guarded_run.guarded_optimizers import GuardedOptimizers
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.megatron_api.protocols import AnyBucketGroup, MegatronOptimizer, ModelChunk
from megatron_nanguard.patching import Engine, Shield
from megatron_nanguard.policy import actions

log = logging.getLogger("megatron_nanguard")


class Guard:
    """The guard of this process.

    Args:
        engine: whose wrappers call the handlers; it says what could not be applied.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shield = Shield()
        self.options = Options()
        self.counts: Counter[str] = Counter()
        self.wards: GuardedOptimizers | None = None
        self._steps: Steps | None = None
        self._attempt: GuardedRun | None = None
        self._meetings = 0
        self._notes: list[str] = []
        self._host_checks = host_program.HostChecks()
        atexit.register(self._at_exit)

    @property
    def active(self) -> bool:
        """All ranks agreed to start, and no fault has switched the guard off since."""
        return self._steps is not None

    # ---------------------------------------------------------------- off

    def remove(self) -> None:
        """Leave no trace in the model or in Megatron's options; the engine undoes its wrappers itself."""
        self._switch_off()
        atexit.unregister(self._at_exit)

    def _switch_off(self) -> None:
        """Off on this rank; the caller knows that all ranks do the same. Megatron's own checks are back on."""
        self._steps = None
        self._host_checks.restore()
        if self.wards is not None:
            self.wards.dismiss()
            self.wards = None

    def _give_up(self, voters: Voters) -> None:
        """A fault of ours on some rank: off on all ranks together."""
        self._switch_off()
        message = (
            "a fault of nanguard's own on some rank: it is off on all ranks, Megatron's own NaN checks are back on"
        )
        self._notes.append(message)
        if dist.get_rank() == voters.ranks[0]:
            log.warning(message)

    # ---------------------------------------------------------------- on

    def groups_exist(self, rank_offset: int, local_world_size: int | None) -> None:
        """The parallel groups of this rank's world are there: meet its ranks."""
        size = dist.get_world_size() if local_world_size is None else local_world_size
        self._meet(range(rank_offset, rank_offset + size))

    def chunk_wrapped(self, chunk: ModelChunk) -> None:
        """A chunk was wrapped for data parallelism: last occasion to meet; its own NaN check stands aside."""
        if not self._meetings:
            self._meet(range(dist.get_world_size()))
        if self.active:
            with self.shield("host checks"):
                self._host_checks.switch_off([chunk])

    def _meet(self, ranks: Sequence[int]) -> None:
        """Handshake over the store. The wait is outside of any shield: it has a deadline of its own."""
        settings = self.options.known()
        self._meetings += 1
        self._switch_off()
        attempt = None
        with self.shield("meeting the other ranks"):
            meeting = RunHandshake(ranks, self._meetings, waits=settings.on)
            if settings.on:
                attempt = GuardedRun(settings, meeting, self._notes)
            else:
                meeting.declare_off()
        if attempt is not None and attempt.agree(self.engine.declined):
            self._start(attempt)

    def _start(self, attempt: GuardedRun) -> None:
        """All ranks run guarded; one on which the start fails says so in its vote."""
        self._attempt = attempt
        with self.shield("start"):
            attempt.start()
        self.wards = GuardedOptimizers(attempt, self.shield, self._host_checks)
        self._steps = Steps(attempt, self.wards, self.shield, self.counts, give_up=self._give_up, leave=self._leave)

    # ---------------------------------------------------------------- wires

    def handlers(self) -> dict[str, Any]:
        """What each patch point calls."""
        return {
            "options": self.options.add_to,
            "initialize_model_parallel": self.groups_exist,
            "wrap_chunk": self.chunk_wrapped,
            "get_param_groups": self.chunks_seen,
            "get_megatron_optimizer": self.optimizer_made,
            "forward_backward": self.schedule_called,
            "start_grad_sync": self.gradients_ready,
            "prepare_grads": self.decide,
            "optimizer_step": self.step,
            "clip_grad_norm": self.norm_known,
            "get_grad_norm": self.norm_known,
            "validate_result": self.stands_aside,
        }

    def chunks_seen(self, chunks: Sequence[ModelChunk]) -> None:
        """Chunks whose parameters are being sorted."""
        if self.wards is not None:
            self.wards.chunks_seen(chunks)

    def optimizer_made(self, optimizer: MegatronOptimizer, chunks: Sequence[ModelChunk]) -> None:
        """Put an optimizer under guard."""
        if self.wards is not None:
            self.wards.optimizer_made(optimizer, chunks)

    def schedule_called(self, schedule: Callable[..., Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """A forward-backward pass begins; evaluation is no step."""
        if self._steps is None or kwargs.get("forward_only", False):
            return kwargs
        return self._steps.schedule_called(schedule, kwargs)

    def gradients_ready(self, group: AnyBucketGroup, force_all_reduce: bool) -> None:
        """A bucket group is about to be reduced. May run on an autograd thread."""
        if self._steps is not None:
            self._steps.gradients_ready(group, force_all_reduce)

    def step(self, step: Callable[[], Any], optimizer: MegatronOptimizer) -> Any:
        """The host's step, of a rank that has nothing to train as well."""
        return step() if self._steps is None else self._steps.step(step, optimizer)

    def decide(self, prepare: Callable[[], bool], optimizer: MegatronOptimizer) -> bool:
        """The decision point."""
        return prepare() if self._steps is None else self._steps.decide(prepare, optimizer)

    def norm_known(self, optimizer: MegatronOptimizer, norm: Any) -> None:
        """The host has computed a gradient norm."""
        if self._steps is not None:
            self._steps.norm_known(optimizer, norm)

    def stands_aside(self, rejection_func: Any) -> bool:
        """Whether a check of the host is taken over: NaN and Inf only."""
        return self.active and host_program.is_nan_check(rejection_func)

    # ---------------------------------------------------------------- exit

    def _leave(self) -> None:
        self._write_last()
        atexit.unregister(self._at_exit)
        actions.abort()

    def _at_exit(self) -> None:
        drilling = self._attempt.drilling if self._attempt else None
        unfired = drilling.unfired() if drilling else []
        self._write_last()
        for text in unfired:
            log.error("drill %s, on rank %s: nothing was tested", text, os.environ.get("RANK", "0"))
        if unfired:
            leave_now(UNFIRED_EXIT_CODE)

    def _write_last(self) -> None:
        if self._attempt is not None:
            with self.shield("exit"):
                self._attempt.write_last(self.engine.fired, self.counts)
