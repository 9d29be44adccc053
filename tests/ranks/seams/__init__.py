"""Faults where they come into a run: a kernel, the wire, memory, data, loss, state; started by `run.py`.

What stands for hardware, another thread or a bad cable writes through the address of a tensor, so that no dispatcher
sees it. Faults of one rank are on rank 1 where there are several.
"""
