from __future__ import annotations

from typing import Any

import pytest

from megatron_nanguard.cpurun.errors import UnmappedCuda


def test_one_device_per_local_rank(mapped: Any) -> None:
    assert mapped.cuda.is_available()
    assert mapped.cuda.device_count() == 2


def test_current_device_follows_set_device_and_context(mapped: Any) -> None:
    mapped.cuda.set_device(1)
    with mapped.cuda.device(0):
        assert mapped.cuda.current_device() == 0
        with mapped.cuda.device("cuda:1"):
            assert mapped.cuda.current_device() == 1
    assert mapped.cuda.current_device() == 1


def test_a_device_beyond_the_last_local_rank_is_refused(mapped: Any) -> None:
    with pytest.raises(RuntimeError, match=r"set_device\(2\): index below 2 expected"):
        mapped.cuda.set_device(2)


def test_capability_and_properties_agree(mapped: Any) -> None:
    properties = mapped.cuda.get_device_properties(0)

    assert mapped.cuda.get_device_capability() == (properties.major, properties.minor) == (8, 0)


def test_lazy_calls_are_made_at_once(mapped: Any) -> None:
    made: list[str] = []

    mapped.cuda._lazy_call(lambda: made.append("call"))

    assert made == ["call"]


def test_starting_the_real_runtime_is_refused(mapped: Any) -> None:
    with pytest.raises(UnmappedCuda, match="issue tracker"):
        mapped.cuda._lazy_init()


def test_memory_numbers_are_zero_under_both_names(mapped: Any) -> None:
    assert mapped.cuda.memory_allocated() == mapped.cuda.memory.memory_allocated(0) == 0
    assert mapped.cuda.memory_stats()["any.key"] == 0


def test_all_memory_is_free(mapped: Any) -> None:
    free, total = mapped.cuda.mem_get_info()

    assert free == total == mapped.cuda.get_device_properties(0).total_memory
