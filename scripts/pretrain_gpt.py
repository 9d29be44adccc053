"""Forwards to the pretrain script that ships in the package, so that a checkout has it under scripts/."""

from megatron_nanguard.cpurun.pretrain_gpt import main

if __name__ == "__main__":
    main()
