from __future__ import annotations

from megatron_nanguard.cpurun.processes import Ending
from megatron_nanguard.cpurun.waiting import failures, first_failure, is_policy_exit


def test_endings_in_words_and_as_a_shell_reports_them() -> None:
    assert (Ending(3, 0.0).words, Ending(3, 0.0).code) == ("exit code 3", 3)
    assert (Ending(-9, 0.0).words, Ending(-9, 0.0).code) == ("signal SIGKILL", 137)


def test_the_earliest_stamp_is_the_first_failure() -> None:
    endings = {0: Ending(0, 1.0), 1: Ending(1, 5.0), 2: Ending(2, 3.0), 3: Ending(1, 4.0)}

    assert first_failure(endings) == 2
    assert set(failures(endings)) == {1, 2, 3}


def test_a_killed_rank_comes_before_those_that_noticed() -> None:
    assert first_failure({0: Ending(1, 1.0), 1: Ending(-11, 2.0)}) == 1


def test_a_policy_exit_is_no_first_failure() -> None:
    assert first_failure({0: Ending(65, 1.0), 1: Ending(1, 2.0)}) == 1


def test_policy_exit_is_all_ranks_or_none() -> None:
    left = {0: Ending(65, 1.0), 1: Ending(65, 1.0)}

    assert is_policy_exit(left, nproc=2)
    assert not is_policy_exit(left, nproc=3)
    assert not is_policy_exit(left | {2: Ending(1, 1.0)}, nproc=3)
    assert not is_policy_exit({}, nproc=1)
