"""Compares one forward and backward of a user's model over all ranks, which use the same seed and batch.

rank 3 only: layers.1.weight: 4 NaN, 0 Inf of 64
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from megatron_nanguard.records.phrase import name_ranks
from megatron_nanguard.replay.digests import named_digests
from megatron_nanguard.screening.grad_check.user_model import UserModel
from megatron_nanguard.screening.participant import Participant
from megatron_nanguard.screening.store_barrier import RanksMissing
from megatron_nanguard.watching import check_grads

SHOWN = 4
"""Most parameters in a line."""


class RankGradients(NamedTuple):
    """Gradients of one rank.

    Attributes:
        bad: non-finite loss and gradients in words; empty when all are finite.
        digests: name to digest, of the loss and of every gradient.
    """

    bad: list[str]
    digests: dict[str, str]


class GradCheckResult(NamedTuple):
    """Result of the comparison, the same on all ranks.

    Attributes:
        code: exit code.
        words: the sentence to print.
        missing: ranks that did not come back.
    """

    code: int
    words: str
    missing: tuple[int, ...] = ()

    @property
    def reporter(self) -> int:
        """The rank that prints it: the lowest one that came back."""
        return next(rank for rank in itertools.count() if rank not in self.missing)


def check(participant: Participant, user_model: UserModel) -> GradCheckResult:
    """Run the model on every rank and compare the gradients.

    Raises:
        SettingsError: the model gives no loss.
    Collective: all ranks.
    """
    barrier = participant.barrier
    barrier.store_result(json.dumps(_gradients(participant, user_model)))
    try:
        participant.wait_for_all("gradients")
    except RanksMissing as late:
        missing = tuple(late.at)
        return GradCheckResult(1, f"{name_ranks(missing)} only: did not come back from forward and backward", missing)
    return compare(
        {rank: RankGradients(*json.loads(each)) for rank, each in enumerate(barrier.results(barrier.world, 0.0))}
    )


def compare(ranks: Mapping[int, RankGradients]) -> GradCheckResult:
    """Compare the gradients of all ranks, and say in one sentence which ranks differ."""
    bad = {rank: each.bad for rank, each in ranks.items() if each.bad}
    if bad:
        who = "all ranks" if len(bad) == len(ranks) else f"{name_ranks(list(bad))} only"
        return GradCheckResult(1, f"{who}: {_some(next(iter(bad.values())), '; ')}")
    usual, count = Counter(tuple(each.digests.items()) for each in ranks.values()).most_common(1)[0]
    if count == len(ranks):
        return GradCheckResult(
            0, f"clean: every gradient is finite, and the same bit for bit on {name_ranks(list(ranks))}"
        )
    odd = {
        rank: [name for name, digest in each.digests.items() if (name, digest) not in usual]
        for rank, each in ranks.items()
        if each.digests != dict(usual)
    }
    what = _some(next(iter(odd.values())), ", ")
    if 2 * count > len(ranks):
        return GradCheckResult(
            1, f"{name_ranks(list(odd))} only: finite, but other bits than on {count} ranks in {what}"
        )
    return GradCheckResult(
        1,
        f"undecided: every gradient is finite, but no majority of ranks has the same bits in {what}; the model may use "
        "operators that are not deterministic",
    )


def _gradients(participant: Participant, user_model: UserModel) -> RankGradients:
    """Run one forward and backward.

    Sync: the host reads the loss and the digests.
    """
    participant.barrier.set_activity("forward and backward")
    loss = user_model.loss_on(participant.tested.device)
    loss.backward()  # type: ignore[no-untyped-call]
    value = loss.item()
    bad = [] if math.isfinite(value) else [f"the loss is {value}"]
    for each in check_grads(user_model.model):
        bad.append(f"{each.name}: {each.nan_count} NaN, {each.inf_count} Inf of {each.counted_elements}")
    gradients = {
        name: param.grad.cpu() for name, param in user_model.model.named_parameters() if param.grad is not None
    }
    return RankGradients(bad, named_digests({"loss": loss.detach().cpu(), **gradients}))


def _some(names: list[str], between: str) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return between.join(names[:SHOWN]) + more
