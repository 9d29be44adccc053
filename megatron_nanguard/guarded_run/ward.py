"""One optimizer under guard, and what goes along in each of its steps: drills, and the watch on chosen modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from megatron_nanguard.drill.planted_drills import PlantedDrills
from megatron_nanguard.guarded_run.drilling import before_reduction
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.megatron_api.protocols import AnyBucketGroup
from megatron_nanguard.policy.deciding import PASS
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.watching.watcher import Watcher


@dataclass
class Ward:
    """What belongs to one optimizer.

    Attributes:
        crew: None where nothing is planted.
        watcher: None where no module is watched.
        verdict: of its last step.
    """

    subject: GuardedOptimizer
    crew: PlantedDrills | None = None
    watcher: Watcher | None = None
    verdict: PolicyOutcome = PASS

    def step_begins(self) -> None:
        """The step is open; its first forward comes next."""
        if self.crew is not None:
            self.crew.step_begins(self.subject.step)
        if self.watcher is not None:
            self.watcher.step_begins(self.subject.step)

    def before_reduction(self, group: AnyBucketGroup, force_all_reduce: bool) -> None:
        """A bucket group of this optimizer is about to be reduced."""
        if self.crew is not None:
            before_reduction(self.crew, group)
        self.subject.before.look(group, force_all_reduce)

    def after_reduction(self) -> None:
        """All gradients are reduced and about to be looked at."""
        if self.crew is not None:
            self.crew.after_reduction()

    def passes_end(self) -> None:
        """The step's own forwards and backwards are over; what comes is a decision, and maybe a replay."""
        if self.watcher is not None:
            self.watcher.step_ends()

    def step_ends(self) -> None:
        """The step is decided on."""
        if self.crew is not None:
            self.crew.step_ends()

    @contextmanager
    def exercise(self) -> Iterator[None]:
        """Around each pass of a replay: drills fire again, as a fault would."""
        if self.crew is not None:
            self.crew.step_begins(self.subject.step)
        yield
        self.after_reduction()

    def dismiss(self) -> None:
        """Take everything off the model."""
        if self.crew is not None:
            self.crew.detach()
        self.passes_end()
