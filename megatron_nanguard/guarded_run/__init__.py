"""One guarded run: how its ranks start together, its optimizers, what it writes outside of incidents."""

from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.guarded_optimizers import GuardedOptimizers
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.options import Options
from megatron_nanguard.guarded_run.run_drills import RunDrills
from megatron_nanguard.guarded_run.run_files import RunFiles
from megatron_nanguard.guarded_run.run_handshake import RunHandshake

__all__ = [
    "GuardedOptimizer",
    "GuardedOptimizers",
    "GuardedRun",
    "Options",
    "RunDrills",
    "RunFiles",
    "RunHandshake",
]
