"""The accused call on its own."""

from __future__ import annotations

from megatron_nanguard.diagnosis.repetition import conclusion
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.sections import suspect_call
from tests.unit.diagnosis.factories import arbitration
from tests.unit.report.factories import described, opened_incident


def test_without_a_call_there_is_no_section() -> None:
    assert suspect_call.describe(opened_incident()) is None


def test_what_was_not_tried_is_left_out() -> None:
    call = arbitration()
    assert described(suspect_call.describe, opened_incident(arbitrations=(call,))).rows == (
        ("call", "aten.log.default on rank 5, decoder.layers.3.mlp"),
        ("together", conclusion(call)),
    )


def test_every_run_of_the_call_is_told() -> None:
    call = arbitration(
        repeats=8,
        repeats_bad=2,
        peer="bad",
        peer_is_alike=True,
        peer_rank=7,
        peer_device="cuda NVIDIA H200",
        reference_fp32="finite",
        reference_fp64="finite",
        reference="softmax",
        out_of_range=True,
        note="inputs from host memory",
    )

    assert suspect_call.describe(opened_incident(arbitrations=(call,))) == Block(
        "The accused call, run again on its own",
        rows=(
            ("call", "aten.log.default on rank 5, decoder.layers.3.mlp"),
            ("same device", "NaN or Inf in 2 of 8 runs"),
            ("another device", "NaN or Inf on rank 7 (cuda NVIDIA H200, the same model on the same host)"),
            ("float32 on CPU", "finite (softmax)"),
            ("float64 on CPU", "finite (softmax), beyond the range of the type it is stored in"),
            ("note", "inputs from host memory"),
            ("together", conclusion(call)),
        ),
    )


def test_many_calls_are_counted() -> None:
    block = described(suspect_call.describe, opened_incident(arbitrations=(arbitration(),) * 5))

    assert len(block.rows) == 6
    assert block.notes == ("... and 2 more calls",)
