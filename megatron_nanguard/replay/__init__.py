"""The step again: what a schedule call needs, kept while it runs, and the same call once more in place."""

from megatron_nanguard.replay.first_bad import FirstBad
from megatron_nanguard.replay.in_place import DecisionPoint, ReplayResult, replay
from megatron_nanguard.replay.step_recorder import RecordedCall, StepRecorder

__all__ = ["DecisionPoint", "FirstBad", "RecordedCall", "ReplayResult", "StepRecorder", "replay"]
