"""Run a captured step again in a fresh job of the same layout, and compare its gradients bit for bit."""

from megatron_nanguard.reloading.comparison import Comparison
from megatron_nanguard.reloading.reload_job import ReloadJob, command_line
from megatron_nanguard.reloading.step import ReloadedStep, reload_step

__all__ = ["Comparison", "ReloadJob", "ReloadedStep", "command_line", "reload_step"]
