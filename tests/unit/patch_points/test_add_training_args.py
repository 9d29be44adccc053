"""Our options on Megatron's own parser."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from megatron_nanguard.patch_points.add_training_args import POINT
from tests.unit.patch_points.calls import applied


def test_the_parser_that_megatron_goes_on_to_use_is_handed_over(megatron: Any) -> None:
    from megatron.training import arguments

    parser = ArgumentParser()
    with applied(POINT, lambda found: found.add_argument("--ours")):
        assert arguments._add_training_args(parser) is parser
    assert parser.parse_args(["--ours", "1", "--micro-batch-size", "2"]).ours == "1"
