from __future__ import annotations

from typing import Any


def test_memory_numbers_are_zero_under_both_names(mapped: Any) -> None:
    assert mapped.cuda.memory_allocated() == mapped.cuda.memory.memory_allocated(0) == 0
    assert mapped.cuda.memory_stats()["any.key"] == 0


def test_free_memory_is_all_of_it(mapped: Any) -> None:
    free, total = mapped.cuda.mem_get_info()

    assert free == total == mapped.cuda.get_device_properties(0).total_memory
