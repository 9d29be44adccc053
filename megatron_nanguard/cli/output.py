"""What the commands print: lines that may quote a file or a path, made fit for a terminal."""

from __future__ import annotations

import sys

import click

from megatron_nanguard.printable import printable_lines, spelled_for


def say(text: str = "", *, err: bool = False) -> None:
    """Print text that is not coloured, and a newline; what the encoding of the output lacks is spelled out."""
    stream = sys.stderr if err else sys.stdout
    click.echo(spelled_for(printable_lines(text), stream.encoding), err=err)
