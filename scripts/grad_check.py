"""Runs `nanguard grad-check`: a script file for torchrun and for `nanguard cpu-run`."""

import sys

from megatron_nanguard.cli import main

if __name__ == "__main__":
    main(["grad-check", *sys.argv[1:]])
