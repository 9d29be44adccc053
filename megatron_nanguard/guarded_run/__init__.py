"""One attempt of a run: how it starts together, where it writes, what it leaves behind at exit."""

from megatron_nanguard.guarded_run.drilling import Drilling
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.options import Options
from megatron_nanguard.guarded_run.run_files import RunFiles
from megatron_nanguard.guarded_run.run_handshake import RunHandshake

__all__ = ["Drilling", "GuardedRun", "Options", "RunFiles", "RunHandshake"]
