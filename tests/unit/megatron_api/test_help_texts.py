"""A host whose help cannot be printed still shows ours."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest

from megatron_nanguard.megatron_api.help_texts import mend


def test_a_lone_percent_sign_no_longer_breaks_the_help() -> None:
    parser = ArgumentParser(prog="train")
    parser.add_argument("--factor", default=7, help="headroom (1.10 = 10%), default %(default)s, %%")
    with pytest.raises(ValueError, match="unsupported format character"):
        parser.format_help()

    mend(parser)
    mend(parser)

    assert "headroom (1.10 = 10%), default 7, %" in parser.format_help()
