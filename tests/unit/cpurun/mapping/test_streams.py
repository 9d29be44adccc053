from __future__ import annotations

from typing import Any

import pytest


def test_the_current_stream_is_the_entered_one(mapped: Any) -> None:
    default, side = mapped.cuda.current_stream(), mapped.cuda.Stream()

    with mapped.cuda.stream(side):
        assert mapped.cuda.current_stream() is side
        with mapped.cuda.stream(None):
            assert mapped.cuda.current_stream() is side
    assert mapped.cuda.current_stream() is default
    with side:
        assert mapped.cuda.current_stream() is side
    assert mapped.cuda.current_stream() is default


def test_streams_have_ids_of_their_own(mapped: Any) -> None:
    assert mapped.cuda.Stream().cuda_stream != mapped.cuda.Stream().cuda_stream


def test_events_measure_between_two_records(mapped: Any) -> None:
    start, end = mapped.cuda.Event(enable_timing=True), mapped.cuda.Event(enable_timing=True)
    start.record()

    with pytest.raises(RuntimeError, match="both events"):
        start.elapsed_time(end)
    mapped.cuda.current_stream().record_event(end)

    assert start.elapsed_time(end) == (end.recorded_at - start.recorded_at) * 1e3 > 0
