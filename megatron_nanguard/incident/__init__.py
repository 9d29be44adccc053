"""One alarm from first to last: signal, exchange, files. Nothing else knows the order."""

from megatron_nanguard.incident.setting import Setting
from megatron_nanguard.incident.signal import Alarm
from megatron_nanguard.incident.stages import handle

__all__ = ["Alarm", "Setting", "handle"]
