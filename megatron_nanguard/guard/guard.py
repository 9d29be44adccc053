"""Switches the guard of this process on and off; the table of handlers names what each patch point calls."""

from __future__ import annotations

import atexit
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch.distributed as dist

from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import leave_now
from megatron_nanguard.guard.self_test import SelfTest
from megatron_nanguard.guard.steps import Steps
from megatron_nanguard.guarded_run.guarded_optimizers import GuardedOptimizers
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.options import Options
from megatron_nanguard.guarded_run.run_drills import UNFIRED_EXIT_CODE
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer, ModelChunk, Schedule, ScheduleArguments
from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.policy import actions

log = logging.getLogger("megatron_nanguard")

Handler = Callable[..., Any]


class Guard:
    """The guard of this process.

    Args:
        engine: its wrappers call the handlers; it knows which patch groups could not be applied.
    Attributes:
        steps: of the guarded run; None where the guard is not active.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shield = Shield()
        self.options = Options()
        self.counts: Counter[str] = Counter()
        self.steps: Steps | None = None
        self._run: GuardedRun | None = None
        self._num_handshakes = 0
        self._notes: list[str] = []
        self._host_checks = host_program.HostChecks()
        self._self_test = SelfTest(engine, self._notes.append)
        atexit.register(self._at_exit)

    @property
    def active(self) -> bool:
        """All ranks agreed to start, and no fault has switched the guard off since."""
        return self.steps is not None

    @cached_property
    def handlers(self) -> dict[str, Handler]:
        """What each patch point calls, by its name."""
        active = self._when_active
        return {
            "options": self.options.add_to,
            "initialize_model_parallel": self.groups_exist,
            "wrap_chunk": self.chunk_wrapped,
            "get_param_groups": active(lambda steps, chunks: steps.optimizers.chunks_seen(chunks)),
            "get_megatron_optimizer": active(lambda steps, *made: steps.optimizers.optimizer_made(*made)),
            "forward_backward": active(self._schedule_called, otherwise=lambda schedule, kwargs: kwargs),
            "start_grad_sync": active(Steps.gradients_ready),
            "prepare_grads": active(self._decide, otherwise=lambda prepare, optimizer: prepare()),
            "optimizer_step": active(Steps.step, otherwise=lambda step, optimizer: step()),
            "clip_grad_norm": active(Steps.norm_known),
            "get_grad_norm": active(Steps.norm_known),
            "validate_result": active(Steps.takes_over, otherwise=lambda check: False),
        }

    def _when_active(self, handle: Handler, otherwise: Handler = lambda *args: None) -> Handler:
        """The handler of a point that has work only while the guard is active.

        Args:
            handle: takes the steps of the run and what the patch point hands over.
            otherwise: takes the latter alone, and gives what the host gets without us.
        """

        def handler(*args: Any) -> Any:
            steps = self.steps
            return otherwise(*args) if steps is None else handle(steps, *args)

        return handler

    # ---------------------------------------------------------------- on

    def groups_exist(self, rank_offset: int, local_world_size: int | None) -> None:
        """Meet the ranks of this rank's world, whose parallel groups exist now."""
        size = dist.get_world_size() if local_world_size is None else local_world_size
        self._meet(range(rank_offset, rank_offset + size))

    def chunk_wrapped(self, chunk: ModelChunk) -> None:
        """Switch off the NaN check of a chunk wrapped for data parallelism; first meet the ranks, if not done yet."""
        if not self._num_handshakes:
            self._meet(range(dist.get_world_size()))
        if self.active:
            with self.shield("host checks"):
                self._host_checks.switch_off([chunk])

    def _meet(self, ranks: Sequence[int]) -> None:
        """Handshake over the store. The wait is outside of any shield: it has a deadline of its own."""
        settings = self.options.known()
        self._num_handshakes += 1
        self._switch_off()
        run = None
        with self.shield("meeting the other ranks"):
            handshake = RunHandshake(ranks, self._num_handshakes, waits=settings.on)
            if settings.on:
                run = GuardedRun(settings, handshake, self.shield, self.counts, self._notes)
            else:
                handshake.declare_off()
        if run is not None and run.agree(self.engine.declined):
            self._start(run)

    def _start(self, run: GuardedRun) -> None:
        """All ranks run guarded. One on which the start fails reports it as a fault in its vote."""
        self._run = run
        with self.shield("start"):
            run.start()
        self._self_test = SelfTest(self.engine, run.warn)
        optimizers = GuardedOptimizers(run, self._host_checks)
        self.steps = Steps(run, optimizers, give_up=self._give_up, leave=self._leave)

    # ---------------------------------------------------------------- steps

    def _schedule_called(self, steps: Steps, schedule: Schedule, kwargs: ScheduleArguments) -> ScheduleArguments:
        """Test the patch points, then open the step."""
        if not kwargs.get("forward_only", False):
            self._self_test.step_begins([*steps.optimizers])
        return steps.schedule_called(schedule, kwargs)

    def _decide(self, steps: Steps, prepare: Callable[[], bool], optimizer: MegatronOptimizer) -> bool:
        """Test the patch points, then decide: a schedule that was replaced shows here first."""
        self._self_test.step_decided()
        return steps.decide(prepare, optimizer)

    # ---------------------------------------------------------------- off

    def remove(self) -> None:
        """Leave no trace in the model or in Megatron's options; the engine undoes its wrappers itself."""
        self._switch_off()
        if self._run is not None:
            with self.shield("end of the threads"):
                self._run.end_threads()
        atexit.unregister(self._at_exit)

    def _switch_off(self) -> None:
        """Switch off on this rank, and Megatron's own checks on; the caller knows that all ranks do the same."""
        steps, self.steps = self.steps, None
        with self.shield("host checks"):
            self._host_checks.restore()
        if steps is not None:
            steps.optimizers.dismiss()

    def _give_up(self, voters: Voters) -> None:
        """A fault of ours on some rank: off on all ranks together."""
        self._switch_off()
        message = (
            "a fault of nanguard's own on some rank: it is off on all ranks, Megatron's own NaN checks are back on"
        )
        self._notes.append(message)
        if dist.get_rank() == voters.ranks[0]:
            log.warning(message)

    # ---------------------------------------------------------------- exit

    def _leave(self) -> None:
        self._write_last()
        atexit.unregister(self._at_exit)
        actions.abort()

    def _at_exit(self) -> None:
        drills = self._run.drills if self._run else None
        unfired = drills.unfired() if drills else []
        self._write_last()
        for text in unfired:
            log.error("drill %s, on rank %s: nothing was tested", text, os.environ.get("RANK", "0"))
        if unfired:
            leave_now(UNFIRED_EXIT_CODE)

    def _write_last(self) -> None:
        if self._run is not None:
            with self.shield("exit"):
                self._run.write_last(self.engine.fired)
