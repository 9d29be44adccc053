"""How a decision is carried out: the step is skipped the way Megatron skips one, or the process ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from megatron_nanguard.coordination.watchdog import EXIT_CODE, leave_now
from megatron_nanguard.megatron_api.optimizers import ScalerStates
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer
from megatron_nanguard.patching.shield import Shield

PATIENCE_SECONDS = 20.0
"""How long the host's own clean-up may take."""


def skip(prepare: Callable[[], bool], optimizer: MegatronOptimizer, shield: Shield) -> bool:
    """Run the host's own ``prepare_grads``, then answer True: no parameter, moment or learning rate moves.

    Where a loss scaler found nothing on this rank, it is updated as if it had, so that all replicas keep one scale.

    Args:
        shield: keeps a fault of ours from undoing the veto.
    """
    before: ScalerStates | None = None
    with shield("veto"):
        before = ScalerStates(optimizer)
    if not prepare() and before is not None:
        with shield("veto"):
            before.back_off()
    return True


def abort(patience: float = PATIENCE_SECONDS) -> NoReturn:
    """Exit with code 65 through the host, so that its clean-up runs; after the patience without it.

    Every rank's evidence is on disk by then, but for digests in `capture/`, which no rank waits for.
    """
    last_call = threading.Timer(patience, leave_now, (EXIT_CODE,))
    last_call.daemon = True
    last_call.start()
    sys.exit(EXIT_CODE)
