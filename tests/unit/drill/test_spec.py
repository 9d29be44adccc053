"""What a drill asks for."""

from __future__ import annotations

import pytest

from megatron_nanguard.drill.grammar import parse
from megatron_nanguard.drill.spec import Phase, check_ranks
from megatron_nanguard.errors import DrillError


def test_a_range_covers_both_its_ends_and_nothing_else() -> None:
    drill = parse("nan@step=2-4,rank=0,phase=forward,module=decoder")[0]
    assert [step for step in range(7) if drill.covers(step)] == [2, 3, 4]


def test_a_rank_beyond_the_world_is_refused() -> None:
    drills = parse("nan@step=1,rank=3+8,phase=forward,module=decoder")
    check_ranks(drills, world_size=9)
    with pytest.raises(DrillError, match="rank 8 does not exist; the last one is 7"):
        check_ranks(drills, world_size=8)


def test_modules_have_executions_and_parameters_have_gradients() -> None:
    keys = {phase.value: phase.target_key for phase in Phase}
    assert keys == {"forward": "module", "backward": "module", "wgrad": "param", "reduced": "param"}
