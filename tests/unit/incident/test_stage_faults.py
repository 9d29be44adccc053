"""A stage that fails costs its result; the next incident leaves it out, unless it is vital."""

from __future__ import annotations

import pytest

from megatron_nanguard.incident.stage_faults import StageFaults


def fail() -> int:
    raise LookupError("planted by the test")


def test_a_stage_that_fails_gives_the_other_result_and_is_left_out_next_time() -> None:
    earlier: dict[str, str] = {}
    first = StageFaults(earlier)
    assert first.attempt("audit", lambda: 3, 0) == 3
    assert first.attempt("audit", fail, 0) == 0
    assert first.now == earlier == {"audit": "incident, audit: LookupError: planted by the test"}
    assert first.attempt("audit", lambda: 3, 0) == 0
    assert first.notes() == (
        "a part of the guard failed on this rank: incident, audit: LookupError: planted by the test",
    )

    second = StageFaults(earlier)
    assert second.attempt("audit", lambda: 3, 0) == 0
    assert second.attempt("merging", lambda: 3, 0) == 3
    assert second.now == {}
    assert second.notes() == (
        "left out, since it failed in an earlier incident: incident, audit: LookupError: planted by the test",
    )


def test_a_vital_stage_is_tried_in_every_incident() -> None:
    earlier = {"signal": "incident, signal: MemoryError: "}
    faults = StageFaults(earlier)
    assert faults.attempt("signal", lambda: 3, 0, is_vital=True) == 3
    assert faults.notes() == ()


@pytest.mark.parametrize("ending", [SystemExit(0), KeyboardInterrupt()])
def test_a_process_that_is_to_end_is_not_held_up(ending: BaseException) -> None:
    def end() -> int:
        raise ending

    with pytest.raises(type(ending)):
        StageFaults({}).attempt("audit", end, 0)
