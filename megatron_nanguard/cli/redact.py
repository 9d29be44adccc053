"""`nanguard redact DIR`: delete what may be confidential, so that the rest can be given to others."""

from __future__ import annotations

from pathlib import Path

import click

from megatron_nanguard.cli import say
from megatron_nanguard.postmortem.bundles import redact


@click.command("redact")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def command(directory: Path) -> None:
    """Delete saved tensors, samples and texts among arguments under DIR; names, counts, positions and verdicts stay.

    Exit code 4 when a file could not be stripped; the other files are stripped nevertheless.

    \b
    Example:
      nanguard redact nanguard
    """
    count = 0
    for path in redact(directory):
        say(f"{'marked' if path.exists() else 'deleted'} {path}")
        count += 1
    say(f"{count} files" if count else "nothing to strip")
