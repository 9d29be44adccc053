"""Forwards to `nanguard screen`, so that `nanguard cpu-run` and torchrun have a script: screen.py [--tp 2 ...]."""

import sys

from megatron_nanguard.cli import main

if __name__ == "__main__":
    main(["screen", *sys.argv[1:]])
