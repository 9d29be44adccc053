from __future__ import annotations

from typing import Any

import pytest

from megatron_nanguard.cpurun.errors import UnmappedCuda


def test_an_unmapped_call_names_itself_and_how_to_report_it(mapped: Any) -> None:
    with pytest.raises(UnmappedCuda) as refused:
        mapped.cuda.graph_pool_handle()

    assert str(refused.value) == (
        "torch.cuda.graph_pool_handle is not mapped to the CPU: please report torch.cuda.graph_pool_handle with this "
        "traceback to the megatron_nanguard issue tracker"
    )


def test_an_unmapped_class_is_still_a_class(mapped: Any) -> None:
    assert isinstance(mapped.cuda.CUDAGraph, type)
    with pytest.raises(UnmappedCuda, match=r"torch\.cuda\.CUDAGraph is not mapped"):
        mapped.cuda.CUDAGraph()


def test_unmapped_calls_of_submodules_are_refused_too(mapped: Any) -> None:
    with pytest.raises(UnmappedCuda, match=r"torch\.cuda\.memory\.caching_allocator_alloc is not mapped"):
        mapped.cuda.memory.caching_allocator_alloc(16)


def test_exceptions_and_tensor_types_are_left_alone(mapped: Any) -> None:
    assert issubclass(mapped.cuda.OutOfMemoryError, RuntimeError)
    assert mapped.cuda.FloatTensor.__name__ == "FloatTensor"
