"""Reads error counters and states of the hardware from NVML, npu-smi and the kernel, in background threads.

watch = watch_device(rank, device, index)    starts the first poll
watch.poll()                                 another one, at an incident
watch.report(at_most=5.0)                    what is new since the first poll
"""
