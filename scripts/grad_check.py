"""Forwards to `nanguard grad-check`, so that torchrun and `nanguard cpu-run` have a script."""

import sys

from megatron_nanguard.cli import main

if __name__ == "__main__":
    main(["grad-check", *sys.argv[1:]])
