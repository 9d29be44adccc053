"""Megatron's help texts, one of which keeps argparse from printing `--help` at all."""

from __future__ import annotations

import re
from argparse import ArgumentParser

_PERCENT = re.compile(r"%(%|\(\w+\))?")


def mend(parser: ArgumentParser) -> None:
    """Double every percent sign that argparse would take for a broken placeholder.

    Source: megatron/core/transformer/transformer_config.py, moe_paged_stash_buffer_size_factor_cuda: "1.10 = 10%)",
        from 0.19 on the help text of an option
    """
    for action in parser._actions:
        if action.help:
            action.help = _PERCENT.sub(lambda found: found[0] if found[1] else "%%", action.help)
