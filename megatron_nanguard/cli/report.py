"""`nanguard report DIR`: print the newest incident under a directory."""

from __future__ import annotations

from pathlib import Path

import click

from megatron_nanguard.postmortem.reading import load_incident
from megatron_nanguard.report import report_text


@click.command("report")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def command(directory: Path) -> None:
    """Print the newest incident found in DIR.

    DIR is the directory of --nanguard-dir, of one run or of one incident, or an incident.json.
    """
    found = load_incident(directory)
    click.echo(report_text(found.incident, found.directory), nl=False)
