"""The whole printed text."""

from __future__ import annotations

import io
from dataclasses import replace

from megatron_nanguard.records.machine.screening import DeviceCheck, Outlier, Screening
from megatron_nanguard.report.rendering.terminal import console_on
from megatron_nanguard.screening.result_table import print_screening
from tests.unit.factories import SIZES
from tests.unit.screening.results import MATMUL, call, message, rank

CLEAN = Screening(
    started="2026-01-01T12:00:00+00:00", seconds=4.2, sizes=SIZES, outliers=(), hints=(), notes=(), ranks=(rank(0),)
)


def text(screening: Screening) -> str:
    stream = io.StringIO()
    print_screening(screening, console_on(stream, has_colour=False))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def test_a_clean_screening() -> None:
    assert text(CLEAN) == (
        "tried             right  not right\nmatmul, bfloat16      1\nno outlier among 8 ranks in 4 s"
    )


def test_outliers_hints_and_notes() -> None:
    bad = replace(MATMUL, result="wrong", words="wrong in 3 of 3 calls")
    screening = replace(
        CLEAN,
        outliers=(Outlier("device", (1,), "rank 1 \x1b[2J computes wrongly", tuple(f"check {n}" for n in range(8))),),
        hints=("slow: rank 0",),
        notes=("the pairs were not tried",),
        ranks=(
            rank(
                0,
                devices=(MATMUL, DeviceCheck("memory, 64 MiB", "right", "", "", 0.1)),
                transfers=tuple(message(0, 1)[:1]),
            ),
            rank(
                1,
                devices=(bad, DeviceCheck("memory, 65 MiB", "right", "", "", 0.1)),
                transfers=(*message(0, 1, "wrong")[1:], *message(1, 0)),
                collectives=(call((0, 1), "late"), call((0, 1), "unsupported", operation="all_to_all")),
            ),
        ),
    )
    assert text(screening) == (
        "tried                       right  not right\n"
        "matmul, bfloat16                1  rank 1\n"
        "memory                          2\n"
        "messages from rank to rank      1  0 to 1\n"
        "all_gather, dp                  0  rank 1\n"
        "OUTLIER device: rank 1 \\x1b[2J computes wrongly\n"
        "  check 0\n  check 1\n  check 2\n  check 3\n  check 4\n  check 5\n  and 2 more\n"
        "hint: slow: rank 0\n"
        "note: the pairs were not tried\n"
        "1 outlier among 8 ranks in 4 s"
    )
