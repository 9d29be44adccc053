"""Record the schedule call of each step, and after an alarm make the same call again in place."""

from megatron_nanguard.replay.first_bad import FirstBad
from megatron_nanguard.replay.in_place import DecisionPoint, ReplayResult, replay
from megatron_nanguard.replay.step_recorder import RecordedCall, StepRecorder

__all__ = ["DecisionPoint", "FirstBad", "RecordedCall", "ReplayResult", "StepRecorder", "replay"]
