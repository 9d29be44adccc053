from __future__ import annotations

from typing import Any

import pytest


def test_torch_accelerator_reports_none(mapped: Any) -> None:
    assert mapped.accelerator.current_accelerator() is None
    assert not mapped.accelerator.is_available()


def test_adam_steps_without_the_real_runtime(mapped: Any) -> None:
    weight = mapped.nn.Parameter(mapped.ones(2, device="cuda"))
    weight.grad = mapped.ones(2)

    mapped.optim.Adam([weight], lr=0.5).step()

    assert weight.tolist() == pytest.approx([0.5, 0.5])


def test_autocast_for_cuda_casts_on_the_cpu(mapped: Any) -> None:
    x = mapped.ones(2, 2)

    with mapped.autocast("cuda", dtype=mapped.bfloat16):
        assert (x @ x).dtype == mapped.bfloat16


def test_the_device_of_an_autocast_may_be_named(mapped: Any) -> None:
    product = mapped.ones(2, 2)
    with mapped.autocast(device_type="cuda", dtype=mapped.bfloat16):
        assert (product @ product).dtype == mapped.bfloat16


def test_profiler_ranges_do_nothing(mapped: Any) -> None:
    with mapped.cuda.nvtx.range("step"):
        assert mapped.cuda.nvtx.range_push("inner") == mapped.cuda.nvtx.range_pop() == 0


def test_compile_returns_the_function_in_both_forms(mapped: Any) -> None:
    def function() -> None: ...

    assert mapped.compile(function) is function
    assert mapped.compile(mode="max-autotune")(function) is function
