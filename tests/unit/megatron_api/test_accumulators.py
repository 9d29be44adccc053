"""Sums for the log come back, and what did not exist at first is emptied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from megatron_nanguard.megatron_api import accumulators


@pytest.fixture
def logging(megatron: Any) -> Iterator[Any]:
    """Megatron's own module of MoE metrics, before any forward pass."""
    from megatron.core.transformer.moe import moe_logging

    moe_logging.destroy_moe_metrics_tracker()
    yield moe_logging
    moe_logging.destroy_moe_metrics_tracker()


def add(logging: Any, value: float) -> None:
    """One micro-batch of the second of two layers."""
    logging.get_moe_metrics_tracker().record("load_balancing_loss", torch.tensor(value), layer_number=2, num_layers=2)


def values(logging: Any) -> list[float]:
    metrics = logging.get_moe_metrics_tracker().metrics
    found: list[float] = metrics["load_balancing_loss"].values.tolist() if metrics else []
    return found


def test_sums_come_back_as_often_as_wanted(logging: Any) -> None:
    add(logging, 1.0)
    put_back = accumulators.keep()
    for _ in range(2):
        add(logging, 2.0)
        assert values(logging) == [0.0, 3.0]
        put_back()
        assert values(logging) == [0.0, 1.0]


def test_a_tracker_that_the_forward_pass_made_is_emptied(logging: Any) -> None:
    put_back = accumulators.keep()
    add(logging, 2.0)
    put_back()
    assert values(logging) == []


def test_losses_of_multi_token_prediction_come_back(megatron: Any) -> None:
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    MTPLossLoggingHelper.tracker = {"values": torch.tensor([1.0])}
    put_back = accumulators.keep()
    MTPLossLoggingHelper.tracker["values"] += 1.0
    put_back()
    assert MTPLossLoggingHelper.tracker["values"].tolist() == [1.0]
    MTPLossLoggingHelper.tracker = {}


def test_tensors_are_found_inside(logging: Any) -> None:
    add(logging, 1.0)
    found = [t.tolist() for one in accumulators.accumulators() for t in accumulators.tensors(one.value)]
    assert [0.0, 1.0] in found
