"""A step as files: micro-batches, random states, model and optimizer of one rank, with no pickle in them."""

from megatron_nanguard.capture.captured import Captured, check, read, without_tensors

__all__ = ["Captured", "check", "read", "without_tensors"]
