"""A fault of ours is swallowed once, said once and remembered; what is the host's passes."""

from __future__ import annotations

import pytest

from megatron_nanguard.patching.shield import Shield
from tests.unit.conftest import Log


def test_without_a_fault_nothing_is_remembered(log: Log) -> None:
    shield = Shield()
    with shield("norms"):
        pass
    assert shield.fault is None
    assert log.records == []


def test_a_fault_is_swallowed_and_remembered_with_its_place() -> None:
    shield = Shield()
    reached = False
    with shield("norms"):
        raise KeyError("bucket 3")
    reached = True
    assert reached
    assert shield.fault == "norms: KeyError: 'bucket 3'"


def test_only_the_first_fault_is_said_and_kept(log: Log) -> None:
    shield = Shield()
    for where in ("norms", "names"):
        with shield(where):
            raise ValueError(where)
    assert shield.fault == "norms: ValueError: norms"
    assert [record.getMessage() for record in log.records] == [
        "a fault of nanguard's own in norms; training goes on without it"
    ]
    assert log.records[0].exc_info is not None


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_ends_the_process_passes(kind: type[BaseException]) -> None:
    shield = Shield()
    with pytest.raises(kind), shield("norms"):
        raise kind
    assert shield.fault is None
