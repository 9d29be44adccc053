"""The step again: what a schedule call needs, kept while it runs, and the same call once more in place."""

from megatron_nanguard.replay.again import DecisionPoint, ReplayResult, replay
from megatron_nanguard.replay.call import RecordedCall, Recorder
from megatron_nanguard.replay.microbatches import FirstBad

__all__ = ["DecisionPoint", "FirstBad", "RecordedCall", "Recorder", "ReplayResult", "replay"]
