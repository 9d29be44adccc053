"""What the hardware says of itself: NVML, npu-smi, the kernel. Looked at in threads, so that nothing ever waits long.

watch = watch_device(rank, device, index)    the first look begins
watch.look()                                 another one, at an incident
watch.report(at_most=5.0)                    what is new since the first
"""

from megatron_nanguard.health.health_watch import HealthWatch, watch_device

__all__ = ["HealthWatch", "watch_device"]
