"""`nanguard report DIR`: read an incident, merge the files of its ranks where the run did not, and show it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import click

from megatron_nanguard.cli import say
from megatron_nanguard.diagnosis.concluding import conclude
from megatron_nanguard.errors import SettingsError
from megatron_nanguard.postmortem.job_history import arguments_of_run, earlier_incidents
from megatron_nanguard.postmortem.loading import LoadedIncident, load_incident, read_traces
from megatron_nanguard.printable import printable_json
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.json.record_file import atomic_write, to_json
from megatron_nanguard.report import print_report
from megatron_nanguard.report.lang import LANGUAGES
from megatron_nanguard.report.opened_incident import OpenedIncident, open_incident

MIN_FILES_FOR_BAR: Final = 256
"""Reading fewer files is so fast that a progress bar would only flicker."""


@click.command("report")
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="Show the incident of step N (default: the newest)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the merged incident as JSON instead.")
@click.option("--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write an HTML page instead.")
@click.option("-f", "--force", is_flag=True, help="Overwrite FILE if it exists.")
@click.option(
    "--lang", type=click.Choice(LANGUAGES), default="en", envvar="NANGUARD_LANG", help="Language of the report."
)
@click.option("--no-color", is_flag=True, help="Print without colours, as with NO_COLOR in the environment.")
def command(
    path: Path, step: int | None, as_json: bool, page: Path | None, force: bool, lang: str, no_color: bool
) -> None:
    """Show the newest incident found in DIR.

    DIR is the directory of --nanguard-dir, of one run or of one incident, or an incident.json. If the run ended before
    it merged the files of its ranks, those that are there are merged now; nothing in DIR is changed.

    \b
    Examples:
      nanguard report nanguard
      nanguard report nanguard --step 123 --html incident.html
      nanguard report nanguard/runs/RUN --json | jq .origin

    Exit code 0 when an incident is shown, 4 when there is none, or none that can be read.
    """
    if page is not None:
        check_page(page, force)
    found = load_incident(path, step, with_progress)
    incident = found.incident if found.incident.causes else _conclude(found)
    if as_json:
        say(printable_json(to_json(incident).decode()).rstrip("\n"))
    if page is not None:
        from megatron_nanguard.report.html.page import report_html

        write_page(page, report_html(_opened(incident, found), lang))
        say(f"wrote {page}", err=True)
    elif not as_json:
        print_report(_opened(incident, found), sys.stdout, has_colour=not no_color, lang=lang)


def _conclude(found: LoadedIncident) -> Incident:
    """Diagnose an incident whose run ended before it had a verdict."""
    traces = read_traces(found.directory, with_progress)
    earlier = tuple(earlier_incidents(found.directory))
    return conclude(found.incident, traces, earlier, arguments_of_run(found.directory))


def _opened(incident: Incident, found: LoadedIncident) -> OpenedIncident:
    if found.table is None:
        return open_incident(incident, found.directory, with_progress)
    return OpenedIncident(incident, found.directory, found.table.rows(incident))


def check_page(file: Path, force: bool) -> None:
    """Check, before the work begins, that `--html FILE` can be written.

    Args:
        file: path that the user gave.
        force: whether a regular file that exists may be overwritten.
    Raises:
        SettingsError: it cannot be written; the message says why.
    """
    try:
        if file.exists() and not file.is_file():
            raise SettingsError(f"--html: {file} is not a regular file")
        if file.exists() and not force:
            raise SettingsError(f"--html: {file} exists; give another name, or --force to write over it")
        if not file.parent.is_dir():
            raise SettingsError(f"--html: {file.parent} is no directory")
    except OSError as error:
        raise _not_written(file, error) from error


def write_page(file: Path, text: str) -> None:
    """Write the page, whole or not at all; if the file is a symbolic link, write the file that it points to.

    Raises:
        SettingsError: it cannot be written.
    """
    target = file.resolve()
    try:
        with atomic_write(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_written(file, error) from error


def _not_written(file: Path, error: OSError) -> SettingsError:
    return SettingsError(f"--html: {file} cannot be written: {error.strerror}")


def with_progress(names: Sequence[str], what: str) -> Iterable[str]:
    """Yield the names of files that are read; show a progress bar if they are many and stderr is a terminal.

    Args:
        names: names of the files.
        what: kind of the files, such as "traces".
    """
    if len(names) < MIN_FILES_FOR_BAR or not sys.stderr.isatty():
        return names
    from rich.console import Console
    from rich.progress import track

    return track(names, f"reading {len(names)} {what}", console=Console(stderr=True), transient=True)
