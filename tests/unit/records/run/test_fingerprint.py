"""What of the environment may reach a file."""

from __future__ import annotations

import re

from megatron_nanguard.records.run.fingerprint import ENVIRONMENT_ALLOW_LIST


def test_the_allow_list_holds_no_name_that_carries_a_secret() -> None:
    secret = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|USER|HOME|PATH|URL|PROXY")

    assert [name for name in ENVIRONMENT_ALLOW_LIST if secret.search(name)] == []


def test_the_allow_list_is_sorted_and_names_each_variable_once() -> None:
    assert list(ENVIRONMENT_ALLOW_LIST) == sorted(set(ENVIRONMENT_ALLOW_LIST))
