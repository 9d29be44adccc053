"""What `--nanguard-capture full` will write, said at the start: whoever asks for it should not learn it from a disk."""

from __future__ import annotations

import logging

from megatron_nanguard.capture.tensor_file import in_words
from megatron_nanguard.guarded_run.run_handshake import RunHandshake

log = logging.getLogger("megatron_nanguard")


def tell_capture_size(meeting: RunHandshake, optimizer: int, num_bytes: int) -> None:
    """Add this rank's part; the last rank to do so says what all of them make. Never waits.

    Args:
        optimizer: running number of the optimizer on this rank.
        num_bytes: of its model and optimizer state on this rank.
    """
    sums = meeting.store(f"capture/{optimizer}")
    sums.add("bytes", num_bytes)
    if int(sums.add("ranks", 1)) == len(meeting.ranks):
        total = in_words(int(sums.add("bytes", 0)))
        log.info("--nanguard-capture full: each incident takes %s over all %d ranks", total, len(meeting.ranks))
