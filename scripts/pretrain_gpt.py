"""Runs the pretrain script of the package, `megatron_nanguard/cpurun/pretrain_gpt.py`."""

from megatron_nanguard.cpurun.pretrain_gpt import main

if __name__ == "__main__":
    main()
