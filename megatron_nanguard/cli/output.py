"""What the commands print: lines that may quote a file or a path, made fit for a terminal."""

from __future__ import annotations

import sys

import click

from megatron_nanguard.printable import printable_lines


def say(text: str = "", *, err: bool = False) -> None:
    """Print text that is not coloured, and a newline."""
    show(printable_lines(text) + "\n", err=err)


def show(text: str, *, err: bool = False) -> None:
    """Print text that a renderer made; what the encoding of the output lacks is spelled out."""
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, err=err)
