"""`nanguard redact DIR`: make a directory fit to be shown to others."""

from __future__ import annotations

from pathlib import Path

import click

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.bundles import redact


@click.command("redact")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def command(directory: Path) -> None:
    """Delete saved tensors and samples under DIR; names, counts, positions and verdicts stay."""
    try:
        changed = list(redact(directory))
    except OSError as error:
        raise PostmortemError(f"{error.filename}: cannot be redacted: {error.strerror}; it is as it was") from error
    for path in changed:
        click.echo(f"{'marked' if path.exists() else 'deleted'} {path}")
    click.echo(f"{len(changed)} files" if changed else "nothing to strip")
