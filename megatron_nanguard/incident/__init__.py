"""One alarm from first to last; `stages.py` holds the order of what happens."""

from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.incident.stages import handle

__all__ = ["Alarm", "handle"]
