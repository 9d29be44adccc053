"""`nanguard report DIR`: print the newest incident under a directory."""

from __future__ import annotations

from pathlib import Path

import click

from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.postmortem.reading import MERGED_NAME, load_incident, read_traces
from megatron_nanguard.report import report_text


@click.command("report")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def command(directory: Path) -> None:
    """Print the newest incident found in DIR.

    DIR is the directory of --nanguard-dir, of one run or of one incident, or an incident.json.
    """
    incident, place = load_incident(directory)
    if not (place / MERGED_NAME).exists():
        # The run ended before its ranks could merge what they knew.
        incident = conclude(incident, read_traces(place))
    click.echo(report_text(incident, place), nl=False)
