"""The tracer finds planted faults at their place, and nothing in a healthy step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_nanguard.records.trace import CauseLink, OriginKind, RankTrace, Sink, TracedOrigin
from megatron_nanguard.tracing.tracer import Tracer
from tests.unit.tracing.faults import (
    FusedAttention,
    FusedWgrad,
    HalfWritten,
    NanBackward,
    UnseenInPlace,
    UnseenKernel,
    clamped_exp,
    discarded,
    fully_masked,
    log_of_negative,
    masked,
    write_nan,
)
from tests.unit.tracing.steps import Model, Schedule, batches, looked_at_closely, trace

PARAMETERS = [f"layers.{layer}.linear.{leaf}" for layer in (0, 1) for leaf in ("weight", "bias")]


def only_origin(traced: RankTrace) -> TracedOrigin:
    assert traced.broken == ""
    (origin,) = traced.origins
    return origin


def is_silent(traced: RankTrace) -> bool:
    return not (traced.broken or traced.origins or traced.sinks or traced.arrivals or traced.departures)


def test_healthy_step_yields_nothing() -> None:
    traced = trace(torch.tanh)
    assert is_silent(traced)
    assert traced.num_events > 30
    assert traced.num_contained == traced.num_meant == 0


def test_operator_in_the_forward_is_named_with_module_micro_batch_and_line() -> None:
    origin = only_origin(trace(log_of_negative))
    assert (origin.kind, origin.operator, origin.place.phase, origin.place.microbatch, origin.place.module) == (
        OriginKind.OPERATOR,
        "log",
        "forward",
        1,
        "layers.0",
    )
    assert origin.place.source_line is not None
    assert "faults.py:" in origin.place.source_line
    assert origin.place.source_line.endswith(" in log_of_negative")
    assert [(facts.name, facts.pattern) for facts in origin.inputs] == [("self", "finite")]
    assert [facts.pattern for facts in origin.outputs] == ["nan"]


def test_path_leads_from_the_origin_to_the_loss() -> None:
    origin = only_origin(trace(log_of_negative))
    assert origin.path == ("log in layers.0", "add.Tensor in layers.0", "add.Tensor in layers.1", "sum")


def test_loss_and_every_gradient_lead_to_the_one_origin() -> None:
    causes = (CauseLink("origin", 0),)
    assert trace(log_of_negative).sinks == (Sink(("loss of micro-batch 1", *PARAMETERS), "nan", causes),)


def test_backward_node_is_named_with_the_forward_that_made_it() -> None:
    place = only_origin(trace(NanBackward.apply)).place
    assert (place.phase, place.microbatch, place.module, place.node) == (
        "backward",
        1,
        "layers.0",
        "NanBackwardBackward",
    )
    assert place.source_line is not None
    assert place.forward_line is not None
    assert "faults.py:" in place.source_line
    assert place.forward_operator == "NanBackward"
    assert "steps.py:" in place.forward_line
    assert place.function_line is not None
    assert "faults.py:" in place.function_line
    assert place.function_line.endswith(" in NanBackward.backward")
    assert only_origin(trace(log_of_negative)).place.function_line is None


def test_overflow_clamped_in_the_forward_is_found_from_the_backward() -> None:
    origin = only_origin(trace(clamped_exp))
    assert (origin.operator, origin.place.phase, origin.outputs[0].pattern) == ("exp", "forward", "inf")
    assert "mul.Tensor in layers.0" in origin.path


def test_nan_that_is_thrown_away_is_only_counted() -> None:
    traced = trace(discarded)
    assert is_silent(traced)
    assert traced.num_contained == 1


def test_healthy_mask_of_minus_inf_yields_nothing() -> None:
    traced = trace(masked)
    assert is_silent(traced)
    assert traced.num_meant == 1


def test_fully_masked_row_is_the_softmax_and_not_the_mask() -> None:
    origin = only_origin(trace(fully_masked))
    assert (origin.operator, origin.outputs[0].pattern) == ("_softmax", "nan")
    assert [facts.pattern for facts in origin.inputs] == ["inf"]


def test_mask_handed_in_as_data_is_meant_too() -> None:
    mask = torch.zeros(2, 4)
    mask[0, 0] = -math.inf
    traced = trace(lambda x: torch.softmax(x + mask, -1))
    assert is_silent(traced)
    assert traced.num_meant == 2


def test_a_number_written_into_a_tensor_is_part_of_the_operator() -> None:
    def written(value: float) -> Callable[[Tensor], Tensor]:
        def inside(x: Tensor) -> Tensor:
            out = x.clone()
            out[0, torch.tensor([1])] = value
            return torch.softmax(out, -1)

        return inside

    origin = only_origin(trace(written(math.nan)))
    assert (origin.kind, origin.operator) == (OriginKind.OPERATOR, "index_put_")
    assert [(facts.name, facts.pattern) for facts in origin.inputs] == [("self", "finite"), ("values", "nan")]
    closely = only_origin(looked_at_closely(written(math.nan))).inputs
    assert [(facts.name, facts.dtype, facts.pattern) for facts in closely] == [
        ("self", "float32", "finite"),
        ("values", "number", "nan"),
        ("indices[0]", "int64", "finite"),
    ]
    assert is_silent(trace(written(-math.inf)))


def test_a_number_in_the_call_is_listed_after_the_tensors() -> None:
    origin = only_origin(trace(lambda x: x.masked_fill(x > 0, math.nan)))
    assert [(facts.name, facts.pattern) for facts in origin.inputs] == [("self", "finite"), ("value", "nan")]
    assert is_silent(trace(lambda x: x.masked_fill(x > 0, 1.0)))


def test_bad_weight_is_an_external_origin() -> None:
    schedule = Schedule(Model())
    with torch.no_grad():
        schedule.model.layers[0].linear.weight[1, 2] = math.nan
    origin = only_origin(schedule.run(batches()))
    assert (origin.kind, origin.operator) == (OriginKind.OUTSIDE, "parameter layers.0.linear.weight")
    assert (origin.place.phase, origin.place.module) == ("load", "layers.0.linear")


def test_bad_data_is_an_external_origin() -> None:
    spoiled = batches()
    spoiled[1][0, 0] = math.nan
    origin = only_origin(Schedule(Model()).run(spoiled))
    assert (origin.kind, origin.operator) == (OriginKind.OUTSIDE, "tensor (2, 4) float32")


@pytest.mark.parametrize(("row", "distance", "reader"), [(1, 1, "embedding"), (0, 4, "sum")])
def test_the_reader_of_a_bad_weight_is_the_first_that_hands_it_on(row: int, distance: int, reader: str) -> None:
    weight = torch.ones(2, 4)
    weight[1, 2] = math.nan

    def tied(x: Tensor) -> Tensor:
        looked_up = x + torch.embedding(weight, torch.tensor([row])).sum()
        return looked_up if row == 1 else looked_up + weight.sum()

    origin = only_origin(trace(tied))
    assert origin.operator == "tensor (2, 4) float32"
    assert origin.reader == origin.event + distance
    assert origin.path[1] == f"{reader} in layers.0"


def test_other_micro_batches_are_not_traced() -> None:
    spoiled = batches()
    spoiled[2][0, 0] = math.nan
    assert is_silent(Schedule(Model(), microbatch=1).run(spoiled))


def test_gradient_spoiled_by_a_later_micro_batch_is_not_blamed_on_this_one() -> None:
    spoiled = batches()
    spoiled[1][0, 0] = spoiled[2][0, 0] = math.nan
    traced = Schedule(Model(), microbatch=1).run(spoiled)
    assert [origin.operator for origin in traced.origins] == ["tensor (2, 4) float32"]


def test_kernel_past_the_dispatcher_is_an_unseen_writer_of_the_memory_it_got() -> None:
    origin = only_origin(trace(UnseenKernel.apply))
    assert (origin.kind, origin.place.module) == (OriginKind.UNSEEN, "layers.0")
    assert origin.path[1] == "add.Tensor in layers.0"


def test_unseen_write_over_a_finite_result_belongs_to_the_function_around_it() -> None:
    assert only_origin(trace(UnseenInPlace.apply)).operator == "UnseenInPlace.forward"
    origin = only_origin(looked_at_closely(UnseenInPlace.apply))
    assert (origin.kind, origin.operator) == (OriginKind.UNSEEN, "UnseenInPlace.forward")
    assert origin.place.source_line is not None
    assert "faults.py:" in origin.place.source_line
    assert origin.outputs[0].positions == ((1, 2),)


def test_half_written_buffer_is_found_under_marker_fill() -> None:
    traced = looked_at_closely(HalfWritten.apply, marker_fill=True)
    origin = only_origin(traced)
    assert traced.labels == ("marker fill",)
    assert (origin.kind, origin.place.module) == (OriginKind.NEVER_WRITTEN, "layers.0")
    assert (origin.outputs[0].nan_count, origin.outputs[0].layout) == (4, "row 1")


def test_marker_fill_of_a_healthy_step_yields_nothing() -> None:
    assert trace(masked, marker_fill=True).origins == ()


def attend(x: Tensor) -> Tensor:
    heads = x.reshape(6, 4, 3)
    return FusedAttention.apply(0.5, heads, heads * 2, heads * 3).reshape(x.shape)


def trace_attention(probe: frozenset[int] = frozenset()) -> RankTrace:
    torch.manual_seed(0)
    model = Model(attend, width=12)
    model.layers[0].num_attention_heads_per_partition = 4
    return Schedule(model, probed_events=probe).run(batches(rows=6, width=12))


def test_fused_region_is_named_with_its_output_head_and_rows() -> None:
    first = only_origin(trace_attention())
    origin = only_origin(trace_attention(frozenset([first.event])))
    assert (origin.kind, origin.operator, origin.place.module) == (
        OriginKind.UNSEEN,
        "FusedAttentionBackward",
        "layers.0",
    )
    (output,) = origin.outputs
    assert (output.name, output.nan_count, output.layout) == ("grad of k", 6, "rows 1 to 2, head 2 (dim 1)")


def test_gradient_that_a_fused_kernel_spoils_in_main_grad_is_its_weights() -> None:
    schedule = Schedule(Model())
    weight = schedule.model.layers[0].linear.weight
    schedule.model.layers[0].linear.forward = lambda x: FusedWgrad.apply(x, weight, lambda: schedule.current == 1)
    traced = schedule.run(batches())
    origin = only_origin(traced)
    assert (origin.kind, origin.operator) == (OriginKind.UNSEEN, "FusedWgradBackward")
    assert [output.name for output in origin.outputs] == ["wgrad of layers.0.linear.weight"]
    assert (origin.place.phase, origin.place.microbatch, origin.place.module) == ("backward", 1, "layers.0.linear")
    assert traced.sinks == (Sink(("layers.0.linear.weight",), "nan", (CauseLink("origin", 0),)),)


class ScalesTwice(torch.autograd.Function):
    """Writes into a buffer it is handed, saves it, and reads it in the backward; all unseen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: Tensor, fault: str) -> Tensor:
        out.numpy()[:] = x.detach().numpy() * 2
        ctx.save_for_backward(out)
        ctx.fault = fault
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (doubled,) = ctx.saved_tensors
        made = torch.empty_like(grad)
        made.numpy()[:] = grad.numpy() + 0 * doubled.numpy()
        if ctx.fault:
            write_nan(made, 1, 2)
        return made, None, None


@pytest.mark.parametrize("fault", ["backward", ""])
def test_junk_in_a_buffer_that_a_forward_has_filled_goes_into_no_backward(fault: str) -> None:
    def inside(x: Tensor) -> Tensor:
        buffer = torch.empty_like(x)
        buffer.detach().numpy()[:] = math.nan
        return ScalesTwice.apply(x, buffer, fault)

    traced = trace(inside)
    found = [(origin.operator, [one.name for one in origin.inputs]) for origin in traced.origins]
    assert found == ([("ScalesTwiceBackward", ["grad", "x", "out"])] if fault else [])


def trace_bucket(probe: frozenset[int] = frozenset()) -> RankTrace:
    """Scale the whole bucket before any gradient in it is looked at, as an overlapped reduction does."""
    torch.manual_seed(0)
    model = Model()
    bucket = torch.zeros(sum(param.numel() for param in model.parameters()))
    schedule = Schedule(model, gradients=bucket, probed_events=probe)
    weight = model.layers[1].linear.weight

    def spoiled_by_a_hook(x: Tensor) -> Tensor:
        x = x * 1.0
        x.register_hook(lambda grad: write_nan(weight.main_grad, 3, 0) if schedule.current == 1 else None)
        return FusedWgrad.apply(x, weight, lambda: False)

    model.layers[1].linear.forward = spoiled_by_a_hook
    return schedule.run(batches())


def test_gradient_spoiled_by_a_hook_in_a_bucket_under_way_is_named_by_the_close_look() -> None:
    first = only_origin(trace_bucket())
    assert (first.kind, first.operator) == (OriginKind.OPERATOR, "mul_.Tensor")
    origin = only_origin(trace_bucket(frozenset([first.event])))
    assert (origin.kind, origin.operator) == (OriginKind.UNSEEN, "wgrad of layers.1.linear.weight")
    assert (origin.place.phase, origin.place.microbatch, origin.place.module) == ("accumulate", 1, "layers.1.linear")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_uninitialised_memory_under_beta_zero_is_not_read(dtype: torch.dtype) -> None:
    garbage = torch.full((1, 4, 4), math.nan, dtype=dtype)

    def scores(x: Tensor) -> Tensor:
        one = x.to(dtype).unsqueeze(0)
        return torch.baddbmm(garbage[:, :2, :2], one, one.transpose(1, 2), beta=0.0).sum(0).to(x.dtype) @ x

    traced = trace(scores)
    assert is_silent(traced)


def test_it_knows_whether_the_traced_micro_batch_runs() -> None:
    tracer = Tracer([], {}, {}, 0, 1)
    seen = []
    for microbatch in (0, 1, None):
        with tracer.at(microbatch, 0, False):
            seen.append(tracer.is_in_microbatch)
    assert [*seen, tracer.is_in_microbatch] == [False, True, False, False]
