"""One forward and backward of a user's model on every rank, alike: whose gradients are bad, or not those of the others.

rank 3 only: layers.1.weight: 4 NaN, 0 Inf of 64
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.replay.digests import named_digests
from megatron_nanguard.screening.grad_check.user_model import UserModel
from megatron_nanguard.screening.participant import Participant
from megatron_nanguard.screening.store_barrier import RanksMissing
from megatron_nanguard.watching import check_grads

SHOWN = 4
"""Most parameters that a line names."""


class RankGradients(NamedTuple):
    """What one rank found.

    Attributes:
        bad: the loss and the parameters with a bad gradient, in words; empty when all are finite.
        digests: of the loss and of every gradient, by name.
    """

    bad: list[str]
    digests: dict[str, str]


class GradCheckResult(NamedTuple):
    """What the ranks say together.

    Attributes:
        code: exit code.
        words: the sentence.
        missing: ranks that did not come back.
    """

    code: int
    words: str
    missing: tuple[int, ...] = ()

    @property
    def speaker(self) -> int:
        """The rank that prints it: the first that is there."""
        return next(rank for rank in itertools.count() if rank not in self.missing)


def check(participant: Participant, user_model: UserModel) -> GradCheckResult:
    """Try the model on every rank and compare; the verdict is alike on all ranks.

    Raises:
        SettingsError: the model gives no loss.
    Collective: all ranks.
    """
    barrier = participant.barrier
    barrier.store_result(json.dumps(_try(participant, user_model)))
    try:
        participant.wait_for_all("gradients")
    except RanksMissing as late:
        missing = tuple(late.at)
        return GradCheckResult(1, f"{name_ranks(missing)} only: did not come back from forward and backward", missing)
    return conclude(
        {rank: RankGradients(*json.loads(each)) for rank, each in enumerate(barrier.results(barrier.world, 0.0))}
    )


def conclude(seen: Mapping[int, RankGradients]) -> GradCheckResult:
    """From what every rank saw to one sentence."""
    bad = {rank: each.bad for rank, each in seen.items() if each.bad}
    if bad:
        who = "all ranks" if len(bad) == len(seen) else f"{name_ranks(list(bad))} only"
        return GradCheckResult(1, f"{who}: {_some(next(iter(bad.values())), '; ')}")
    usual, count = Counter(tuple(each.digests.items()) for each in seen.values()).most_common(1)[0]
    if count == len(seen):
        return GradCheckResult(
            0, f"clean: every gradient is finite, and the same bit for bit on {name_ranks(list(seen))}"
        )
    odd = {rank: _different(each.digests, dict(usual)) for rank, each in seen.items() if each.digests != dict(usual)}
    what = _some(next(iter(odd.values())), ", ")
    if 2 * count > len(seen):
        return GradCheckResult(
            1, f"{name_ranks(list(odd))} only: finite, but other bits than on {count} ranks in {what}"
        )
    return GradCheckResult(
        1,
        f"undecided: every gradient is finite, but no majority of ranks has the same bits in {what}; the model may use "
        "operators that are not deterministic",
    )


def _try(participant: Participant, user_model: UserModel) -> RankGradients:
    """One forward and backward.

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


def _different(digests: Mapping[str, str], usual: Mapping[str, str]) -> list[str]:
    return [name for name, digest in digests.items() if usual.get(name) != digest]


def _some(names: list[str], between: str) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return between.join(names[:SHOWN]) + more
