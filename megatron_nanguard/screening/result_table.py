"""Prints the result of a screening: a table of the tests, then outliers, hints and notes.

tried                               right  not right
matmul, bfloat16                        7  rank 5
links, both ways                       19  rank 4 to rank 6
all_reduce, tp                          8
OUTLIER device: rank 5 (TP 1, PP 1, DP 0) computes wrongly
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from megatron_nanguard.printable import printable
from megatron_nanguard.records.machine.screening import Outlier, Screening
from megatron_nanguard.records.phrase import name_ranks

SHOWN = 6
"""Most links in a cell, and most lines of evidence of an outlier."""


def print_screening(screening: Screening, console: Console) -> None:
    """Print a screening."""
    console.print(_table(screening))
    for line in _lines(screening):
        console.print(line, soft_wrap=True)


def _table(screening: Screening) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("tried")
    table.add_column("right", justify="right")
    table.add_column("not right")
    for test, results in _rows(screening).items():
        wrong = sorted(ranks for ranks, is_right in results.items() if not is_right)
        table.add_row(printable(test), str(len(results) - len(wrong)), Text(_words(wrong), style="red"))
    return table


def _rows(screening: Screening) -> dict[str, dict[tuple[int, ...], bool]]:
    """Test to (a rank, or source and target) to whether the result was right."""
    rows: dict[str, dict[tuple[int, ...], bool]] = {}
    for each in screening.ranks:
        for check in each.devices:
            kind = "memory" if check.name.startswith("memory") else check.name
            rows.setdefault(kind, {})[(each.rank,)] = check.result == "right"
    messages = rows.setdefault("messages from rank to rank", {})
    for each in screening.ranks:
        for message in each.transfers:
            pair = (message.source, message.target)
            messages[pair] = messages.get(pair, True) and message.result == "right"
    for each in screening.ranks:
        for call in each.collectives:
            if call.result != "unsupported":
                rows.setdefault(f"{call.operation}, {call.axis}", {})[(each.rank,)] = call.result == "right"
    return {test: results for test, results in rows.items() if results}


def _words(wrong: list[tuple[int, ...]]) -> str:
    if not wrong:
        return ""
    if len(wrong[0]) == 1:
        return name_ranks([rank for (rank,) in wrong])
    shown = ", ".join(f"{source} to {target}" for source, target in wrong[:SHOWN])
    return shown if len(wrong) <= SHOWN else f"{shown} and {len(wrong) - SHOWN} more"


def _lines(screening: Screening) -> Iterator[Text]:
    for outlier in screening.outliers:
        yield Text(printable(f"OUTLIER {outlier.kind}: {outlier.words}"), style="bold red")
        yield from (Text(f"  {printable(line)}") for line in _evidence(outlier))
    yield from (Text(printable(f"hint: {hint}"), style="yellow") for hint in screening.hints)
    yield from (Text(printable(f"note: {note}")) for note in screening.notes)
    yield Text(_summary(screening), style="bold red" if screening.outliers else "bold green")


def _evidence(outlier: Outlier) -> Iterator[str]:
    yield from outlier.evidence[:SHOWN]
    if len(outlier.evidence) > SHOWN:
        yield f"and {len(outlier.evidence) - SHOWN} more"


def _summary(screening: Screening) -> str:
    tried = f"{screening.sizes.world} ranks in {screening.seconds:.0f} s"
    count = len(screening.outliers)
    if not count:
        return f"no outlier among {tried}"
    return f"{count} outlier{'s' if count > 1 else ''} among {tried}"
