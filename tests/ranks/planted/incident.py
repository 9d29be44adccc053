"""The form in which the files beside this one say what a planted fault must be reported as.

What their derivations use again and again:

- A NaN element of a hidden state makes its whole token NaN at the next layer norm. In attention the weighted sum
  multiplies masked positions by 0, and 0 * NaN is NaN: every token of that sample is lost, on the way back likewise.
- The gradient at the input of a column-parallel layer is all-reduced over TP, the output of a row-parallel layer is
  all-reduced over TP in forward: what happens to one TP rank inside attention or MLP reaches the other.
- A token lies in the vocabulary part of some TP rank: over all TP ranks the word embeddings are bad, on a single one
  they need not be.
- Plain DDP: an element that is bad on one data-parallel rank is bad on all of them after the reduction. Distributed
  optimizer: only on the rank that owns the element.
- Several stages: after the reduction the first and the last add up the gradients of the tied embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BEFORE, AFTER, OVERFLOW = "gradient_before_reduction", "gradient_after_reduction", "norm_overflow"

OVER_DP = "data-parallel reduction"
OVER_TP = "gradient all-reduce over tensor parallel ranks"
TIED = "gradient all-reduce of tied embeddings"

Place = dict[str, tuple[int, ...]]
"""The axes on which a group of ranks is not everything, with its indices."""


@dataclass(frozen=True)
class Incident:
    """One incident, as the layout and the place of the fault demand it.

    Attributes:
        kind: where the values were met first.
        before: ranks with bad gradients of their own.
        after_only: ranks that only communication can have reached.
        groups: `before` as products of axes.
        local: parameters bad before the reduction, on any rank.
        reduced: parameters bad in what some optimizer consumes.
        by: ranks of `after_only` by the communication that reached them.
        words: `groups` in words; empty where they only name a rank.
        pattern: of every parameter, before and after.
        losses: micro-batch to the ranks whose loss is not finite.
        counts: NaN elements over all ranks before and after; None where no value is left to count.
    """

    kind: str
    before: set[int]
    after_only: set[int]
    groups: tuple[Place, ...]
    local: set[str]
    reduced: set[str]
    by: Mapping[str, set[int]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    pattern: str = "nan"
    losses: Mapping[int, set[int]] = field(default_factory=dict)
    counts: tuple[int | None, int | None] | None = None


@dataclass(frozen=True)
class Case:
    """A planted fault and what must come of it.

    Attributes:
        drill: specification with `{step}` where its step goes; empty for a healthy step.
        incident: None where nothing may be reported.
    """

    drill: str
    incident: Incident | None


HEALTHY = Case("", None)


def one_parameter(
    rank: int,
    place: Place,
    name: str,
    by: Mapping[str, set[int]],
    *,
    reduced_too: frozenset[str] = frozenset(),
    kind: str = BEFORE,
    pattern: str = "nan",
    counts: tuple[int | None, int | None] | None = None,
) -> Incident:
    """One parameter bad on one rank before the reduction, and on the ranks of `by` after it."""
    reached = set().union(*by.values())
    bad = {name}
    return Incident(kind, {rank}, reached, (place,), bad, bad | reduced_too, by=by, pattern=pattern, counts=counts)


def only_reduced(rank: int, name: str) -> Incident:
    """One element bad on one rank after the reduction; every gradient of every rank was finite before it."""
    return Incident(AFTER, set(), {rank}, (), set(), {name}, counts=(None, 1))
