"""`nanguard report DIR`: read an incident, merge what was not merged, and show it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megatron_nanguard.cli.output import say
from megatron_nanguard.cli.page import check_target, write_page
from megatron_nanguard.cli.progress import track
from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.postmortem.job_history import arguments_of_run, earlier_incidents
from megatron_nanguard.postmortem.reading import LoadedIncident, load_incident, read_traces
from megatron_nanguard.printable import printable_json
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.json.conversion import to_json
from megatron_nanguard.report import print_report
from megatron_nanguard.report.lang import LANGUAGES
from megatron_nanguard.report.opened_incident import OpenedIncident, open_incident


@click.command("report")
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="The incident of step N (default: the newest).")
@click.option("--json", "as_json", is_flag=True, help="Print the merged incident as JSON instead.")
@click.option("--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write a page instead.")
@click.option("-f", "--force", is_flag=True, help="Write over FILE where it exists.")
@click.option(
    "--lang", type=click.Choice(LANGUAGES), default="en", envvar="NANGUARD_LANG", help="Language of the report."
)
@click.option("--no-color", is_flag=True, help="No colours, as with NO_COLOR in the environment.")
def command(
    path: Path, step: int | None, as_json: bool, page: Path | None, force: bool, lang: str, no_color: bool
) -> None:
    """Show the newest incident found in DIR.

    DIR is the directory of --nanguard-dir, of one run or of one incident, or an incident.json. Where the ranks did not
    come to merge their files, they are merged here, whichever of them are there; nothing in DIR is changed.

    \b
    Examples:
      nanguard report nanguard
      nanguard report nanguard --step 123 --html incident.html
      nanguard report nanguard/runs/RUN --json | jq .origin

    Exit code 0 when there is an incident to show, 4 when there is none, or none that can be read.
    """
    if page is not None:
        check_target(page, force)
    found = load_incident(path, step, track)
    incident = found.incident if found.is_judged else _judge(found)
    if as_json:
        say(printable_json(to_json(incident).decode()).rstrip("\n"))
    if page is not None:
        _write(page, _opened(incident, found), lang)
    elif not as_json:
        print_report(_opened(incident, found), sys.stdout, has_colour=not no_color, lang=lang)


def _judge(found: LoadedIncident) -> Incident:
    """What the run would have concluded, had it lived."""
    earlier = tuple(earlier_incidents(found.directory))
    return conclude(found.incident, read_traces(found.directory, track), earlier, arguments_of_run(found.directory))


def _opened(incident: Incident, found: LoadedIncident) -> OpenedIncident:
    if found.table is None:
        return open_incident(incident, found.directory, track)
    return OpenedIncident(incident, found.directory, found.table.rows(incident))


def _write(page: Path, opened: OpenedIncident, lang: str) -> None:
    from megatron_nanguard.report.html import report_html

    write_page(page, report_html(opened, lang))
    say(f"wrote {page}", err=True)
