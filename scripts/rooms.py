"""The rooms of the package, from top to bottom, and who may import whom: the one table of it.

`scripts/write_docs.py` draws the figure of README and CONTRIBUTING from this table; `tests/unit/test_architecture.py`
holds the sources to it. A room imports from lower rows only, never from its own row, and a torch-free room imports
torch-free ones only.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """Rooms and single files of one height.

    Attributes:
        torch_free: can be used without torch installed.
        torch_side: may import torch; `megatron.*` through megatron_api only.
    """

    torch_free: tuple[str, ...]
    torch_side: tuple[str, ...]


ROWS = (
    Row((), ("guard",)),
    Row(("cli",), ("incident", "cpurun", "screening")),
    Row(("report",), ("guarded_run", "reloading")),
    Row(
        ("diagnosis", "postmortem"),
        ("patch_points", "replay", "tracing", "arbitration", "capture", "watching", "policy", "drill"),
    ),
    Row((), ("parameters", "sentinel", "coordination")),
    Row((), ("topology", "health")),
    Row((), ("device", "megatron_api", "patching")),
)
BOTH_SIDES = ("records", "settings")
"""Below all rows; both columns import them."""
LEAVES = ("errors", "printable", "time_limit", "version")
"""They import nothing of this package."""
TORCH_LEAVES = ("tensor_names",)
"""They import torch and nothing of this package; every room of the torch side may import them."""
ENTRIES = ("__init__", "__main__")
"""Above all rows: what `import megatron_nanguard` and `python -m megatron_nanguard` run."""

_LEFT, _RIGHT = 24, 92
"""Widths of the two columns of the figure."""


def height_of() -> dict[str, int]:
    """The row of every room and single file; a higher one may import a lower one."""
    heights = (
        dict.fromkeys((*LEAVES, *TORCH_LEAVES), 0)
        | dict.fromkeys(BOTH_SIDES, 1)
        | dict.fromkeys(ENTRIES, len(ROWS) + 2)
    )
    for height, row in enumerate(reversed(ROWS), start=2):
        heights |= dict.fromkeys((*row.torch_free, *row.torch_side), height)
    return heights


def torch_side() -> frozenset[str]:
    """Every room that may import torch."""
    return frozenset(room for row in ROWS for room in row.torch_side) | frozenset(TORCH_LEAVES)


def figure() -> str:
    """The table as text, one line per row; a long one goes on in the next line."""
    lines = [f"{'torch-free':<{_LEFT}}| torch and Megatron allowed"]
    for row in ROWS:
        left = "  ".join(row.torch_free)
        for rooms in _folded(row.torch_side):
            lines.append(f"{left:<{_LEFT}}| {rooms}")
            left = ""
    return "\n".join([*lines, _bottom()])


def _bottom() -> str:
    """What lies below all rows."""
    return f"{'  '.join((*BOTH_SIDES, *LEAVES[:3]))}  (both sides)  |  {'  '.join(TORCH_LEAVES)}"


def _folded(rooms: tuple[str, ...]) -> list[str]:
    """Names joined with two spaces, in lines of at most the column's width."""
    lines = [""]
    for room in rooms:
        longer = f"{lines[-1]}  {room}" if lines[-1] else room
        lines[-1:] = [longer] if len(longer) + _LEFT + 2 <= _RIGHT else [lines[-1], room]
    return lines
