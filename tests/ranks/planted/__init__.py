"""Planted faults per layout, and what must be reported: written by hand from the layout, never read off a run.

One file per layout. The first case of each is what runs by default where the rest is left to the long grid.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.ranks.planted import layout_a, layout_b, layout_c, layout_d, layout_e, layout_f, layout_h
from tests.ranks.planted.incident import Case

pytest.register_assert_rewrite(f"{__name__}.checks")

GRID: Mapping[str, tuple[Case, ...]] = {
    "A": layout_a.CASES,
    "AR": layout_a.WITH_RECOMPUTE,
    "B": layout_b.CASES,
    "C": layout_c.CASES,
    "D1": layout_d.ONE_RANK,
    "D2": layout_d.TWO_RANKS,
    "E": layout_e.CASES,
    "F": layout_f.CASES,
    "H": layout_h.CASES,
}
MORE_ARGUMENTS = {"C": ("--moe-router-topk", "8"), "F": ("--moe-router-topk", "8")}
"""Every token visits every expert, so that routing does not decide whom a fault reaches."""
