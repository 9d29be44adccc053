"""Forwards to `nanguard reload`, so that `nanguard cpu-run` and torchrun have a script: reload_step.py DIR [ARGS]..."""

import sys

from megatron_nanguard.cli import main

if __name__ == "__main__":
    main(["reload", *sys.argv[1:]])
