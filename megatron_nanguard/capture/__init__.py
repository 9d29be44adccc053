"""Save one rank's part of a step: micro-batches, random states, model and optimizer, in files without pickle."""

from megatron_nanguard.capture.captured import Captured, check, read, without_tensors

__all__ = ["Captured", "check", "read", "without_tensors"]
