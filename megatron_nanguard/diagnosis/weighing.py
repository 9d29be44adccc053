"""Weigh facts for and against one cause.

Weights are steps of log odds: 1 is a hint, 2 is strong, 4 almost settles it. The prior of a cause says how common it is
in the field, where faults of hardware are rare and reads of unwritten memory are not.
"""

from __future__ import annotations

import math
from collections import defaultdict

from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.phrase import phrase

SLIGHT = 0.5
HINT = 1.0
STRONG = 2.0
DECISIVE = 4.0

CEILING = 0.98
"""The highest confidence that a rule can give."""

LISTED_FACTS = 3
"""Facts of one kind that are listed; the others are counted."""


class _Side:
    """The facts for, or against. Facts of one kind are seldom independent: they weigh as much as the heaviest one."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        self._facts: dict[str, list[str]] = defaultdict(list)

    def add(self, weight: float, fact: str, kind: str) -> None:
        self._weights[kind] = max(weight, self._weights.get(kind, 0.0))
        if fact not in self._facts[kind]:
            self._facts[kind].append(fact)

    def weight(self) -> float:
        return sum(self._weights.values())

    def facts(self) -> tuple[str, ...]:
        listed = []
        for facts in self._facts.values():
            listed += facts[:LISTED_FACTS]
            if len(facts) > LISTED_FACTS:
                listed.append(phrase("and {more} more like it", more=len(facts) - LISTED_FACTS))
        return tuple(listed)


class Scales:
    """The facts for and against one cause, with their weights.

    Args:
        cause: which one.
        prior: log odds before any fact is seen.
    Attributes:
        ceiling: the highest confidence that this kind of facts allows.
    """

    def __init__(self, cause: Cause, prior: float) -> None:
        self.ceiling = CEILING
        self._cause = cause
        self._prior = prior
        self._for = _Side()
        self._against = _Side()
        self._not_tested: list[str] = []

    def speaks_for(self, weight: float, fact: str, kind: str = "") -> None:
        """Add a fact that speaks for the cause.

        Args:
            weight: SLIGHT, HINT, STRONG or DECISIVE.
            fact: with rank, operator and numbers.
            kind: shared by facts that say the same of several ranks or calls; the fact itself where it is empty.
        """
        self._for.add(weight, fact, kind or fact)

    def speaks_against(self, weight: float, fact: str, kind: str = "") -> None:
        """Add a fact that speaks against it; arguments as above."""
        self._against.add(weight, fact, kind or fact)

    def not_tested(self, what: str) -> None:
        """Add what would bear on the cause and was not tried."""
        if what not in self._not_tested and len(self._not_tested) < LISTED_FACTS:
            self._not_tested.append(what)

    def reading(self) -> RankedCause | None:
        """The cause with its confidence; None when nothing speaks for it."""
        if not self._for.facts():
            return None
        odds = self._prior + self._for.weight() - self._against.weight()
        confidence = min(self.ceiling, 1 / (1 + math.exp(-odds)))
        return RankedCause(
            cause=self._cause,
            confidence=round(confidence, 2),
            for_=self._for.facts(),
            against=self._against.facts(),
            not_tested=tuple(self._not_tested),
            next="",
        )
