"""What was seen in a tensor: NaN, Inf, both or neither."""

from __future__ import annotations

from typing import Literal

Pattern = Literal["nan", "inf", "nan+inf", "finite"]


def pattern_of(nan: object, inf: object) -> Pattern:
    """Name what was seen.

    Args:
        nan: truthy if there was a NaN, such as a count.
        inf: truthy if there was an Inf of either sign.
    """
    if nan and inf:
        return "nan+inf"
    if nan:
        return "nan"
    return "inf" if inf else "finite"
