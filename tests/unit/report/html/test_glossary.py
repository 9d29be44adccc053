"""What the page says about itself and the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_nanguard.report.html.glossary import about
from tests.unit.factories import ABORT, incident


@pytest.mark.parametrize(
    ("action", "ends"),
    [
        ("abort", "Exit code 65 means that the guard stopped the job because of it."),
        ("skip", "if it ended later, look at later incidents or the training log."),
        ("continue", "if it ended later, look at later incidents or the training log."),
        ("unknown", "in which megatron_nanguard found NaN or Inf."),
    ],
)
def test_the_sentence_on_the_job_follows_the_action_of_the_policy(action: str, ends: str) -> None:
    assert about(incident(policy=replace(ABORT, action=action))).endswith(ends)
