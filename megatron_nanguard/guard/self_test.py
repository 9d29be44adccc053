"""The patch points compared with what a step calls: another package may have taken one away since the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.megatron_api import buffers, optimizers
from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.patching.shield import Shield


class SelfTest:
    """Heals wrappers in every step; after the first one also says which point was never called. Local work.

    Args:
        warn: notes a sentence, and logs it on one rank.
    """

    def __init__(self, engine: Engine, warn: Callable[[str], None]) -> None:
        self._engine, self._warn = engine, warn
        self._num_decisions = 0
        self._said: set[str] = set()

    def step_begins(self, guarded: Sequence[GuardedOptimizer]) -> None:
        """At each call of the schedule that trains.

        Args:
            guarded: the optimizers of the run, as far as they are known.
        """
        with Shield()("testing the patch points"):
            self._heal()
            if self._num_decisions:
                self._compare_with_calls(guarded)

    def step_decided(self) -> None:
        """Before each decision: a schedule that was replaced during the run is wrapped again from the next step on."""
        self._num_decisions += 1
        with Shield()("testing the patch points"):
            self._heal()

    def _heal(self) -> None:
        for lost in self._engine.heal():
            path, group = lost.target.path, lost.point.group
            reason = self._engine.declined.get(group)
            if reason is None:
                self._say(path, f"another package replaced {path}; it is wrapped again")
            else:
                self._say(path, f"another package replaced {path}, which cannot be wrapped again: {reason} ({group})")

    def _compare_with_calls(self, guarded: Sequence[GuardedOptimizer]) -> None:
        """Once a step was decided, its gradients were reduced, and it was clipped by their norm."""
        chunks = [chunk for each in guarded for chunk in each.chunks]
        if any(buffers.bucket_groups(chunk) for chunk in chunks):
            self._expect("before_reduction")
        clips = [each for each in guarded if optimizers.clip_threshold(each.optimizer)]
        if clips and not any(optimizers.is_dynamic(each.optimizer) for each in clips if each.optimizer is not None):
            self._expect("norm")

    def _expect(self, group: str) -> None:
        """Say what is lost if no function of a patch group has been called so far."""
        points = [point for point in self._engine.points if point.group == group]
        paths = [target.path for point in points for target in point.targets]
        if (
            points
            and group not in self._engine.declined
            and not any(self._engine.fired_points[point.name] for point in points)
        ):
            self._say(group, f"no call of {' or '.join(paths)} in a whole step; lost: {points[0].lost}")

    def _say(self, key: str, sentence: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._warn(sentence)
