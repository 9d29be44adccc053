"""Collects what a rank saves of a step: tensors by name, which stay where they are until they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from megatron_nanguard.arbitration.call_catcher import CaughtCall
from megatron_nanguard.capture import Captured, random_state_tensors, without_tensors
from megatron_nanguard.capture.batch_leaves import Batcher
from megatron_nanguard.capture.model_state import live_state, norms_by_name, split
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.megatron_api.optimizer_state import numbers
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer
from megatron_nanguard.records.step.capture import CapturedBatch, CapturedCall, CaptureFile
from megatron_nanguard.replay.digests import named_digests
from megatron_nanguard.replay.step_recorder import RecordedCall
from megatron_nanguard.settings import SAVES_STEP


@dataclass(frozen=True)
class Collector:
    """Collects one rank's part of a step.

    Args:
        optimizer: the outermost one.
        level: of --nanguard-capture, not "none".
        calls: the suspect ones of this rank.
        gradients: digest of each gradient of the first pass, over which a replay writes.
        why_no_replay: why the step could not be run again here either; empty when it could.
    """

    guarded: GuardedOptimizer
    optimizer: MegatronOptimizer
    level: str
    calls: Sequence[CaughtCall]
    gradients: Mapping[str, str]
    why_no_replay: str

    def collect(self) -> Captured:
        """All of it.

        Sync: host reads for the digests.
        """
        guarded, step = self.guarded, self.guarded.step
        call = None if step.recorder is None else step.recorder.call
        batcher, batch = Batcher(keeps_text=self.level in SAVES_STEP), CapturedBatch()
        if call is not None:
            batch = CapturedBatch(batcher.take_apart(call.recording.batch()), *call.recording.places())
        of_calls = {
            f"call/{number}/{name}": tensor
            for number, call_ in enumerate(self.calls)
            for name, tensor in (call_.full or call_.tensors).items()
        }
        record = CaptureFile(
            step=step.number,
            coordinates=guarded.coordinates,
            sizes=guarded.sizes,
            level="ids",
            num_microbatches=0 if call is None else call.num_microbatches,
            batch=batch,
            calls=tuple(_call(number, call_, of_calls) for number, call_ in enumerate(self.calls)),
            digests=named_digests({**batcher.tensors, **of_calls}),
            left_out=tuple(batcher.left_out),
            versions=host_program.versions(),
        )
        if self.level not in SAVES_STEP:
            return Captured(record)
        if call is None or self.why_no_replay:
            return Captured(without_tensors(record, self.why_no_replay))
        return self._with_step(record, batcher.tensors, call)

    def _with_step(self, record: CaptureFile, batch: Mapping[str, Tensor], call: RecordedCall) -> Captured:
        random, of_random = random_state_tensors.take_apart(call.snapshot.random)
        record = replace(
            record,
            level="step",
            random=random,
            gradients=dict(self.gradients),
            norms=norms_by_name(self.guarded.step.before.taken(), self.guarded.names),
        )
        tensors = {**batch, **of_random}
        if self.level == "step":
            return Captured(record, tensors)
        at_entry = {(one.module, one.name): one.content for one in call.snapshot.buffers}
        state, lost = split(live_state(self.guarded.chunks, self.guarded.names, self.optimizer, at_entry))
        record = replace(record, level="full", numbers=numbers(self.optimizer), left_out=(*record.left_out, *lost))
        return Captured(record, {**tensors, **state})


def _call(number: int, call: CaughtCall, tensors: Mapping[str, Tensor]) -> CapturedCall:
    saved, prefix = call.saved, f"call/{number}/"
    names = tuple(name for name in tensors if name.startswith(prefix))
    return CapturedCall(saved.operator, saved.module, saved.phase, names)
