"""The command `nanguard` as a script file, which `nanguard cpu-run` takes: nanguard.py screen [--tp 2 ...]."""

from megatron_nanguard.cli import main

if __name__ == "__main__":
    main()
