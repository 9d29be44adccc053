"""Leave, alike on all ranks, after every rank's evidence is on disk; digests in `capture/` are waited for by none."""

from __future__ import annotations

import sys
import threading
from typing import NoReturn

from megatron_nanguard.coordination.watchdog import EXIT_CODE, leave_now

PATIENCE_SECONDS = 20.0


def leave(patience: float = PATIENCE_SECONDS) -> NoReturn:
    """Exit with code 65 through the host, so that its own clean-up runs; without it when that takes too long."""
    last_call = threading.Timer(patience, leave_now, (EXIT_CODE,))
    last_call.daemon = True
    last_call.start()
    sys.exit(EXIT_CODE)
