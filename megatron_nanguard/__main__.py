"""`python -m megatron_nanguard X`: the command X of `nanguard`, or `nanguard run X` when X is no command.

So `torchrun ... -m megatron_nanguard pretrain_gpt.py ...` guards a script that nobody edited.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from megatron_nanguard.cli import COMMANDS, main

_OF_THE_GROUP = ("-h", "--help", "--version")


def as_command(args: Sequence[str]) -> list[str]:
    """Put `run` in front of what does not begin with a command or an option of `nanguard` itself."""
    if not args or args[0] in COMMANDS or args[0] in _OF_THE_GROUP:
        return list(args)
    return ["run", *args]


if __name__ == "__main__":
    main(as_command(sys.argv[1:]))
