"""`nanguard schema NAME`: the JSON Schema of one kind of file, made from the dataclass that is written."""

from __future__ import annotations

import click
import orjson

from megatron_nanguard.cli import say
from megatron_nanguard.records.json.file_kinds import FILE_KINDS
from megatron_nanguard.records.json.record_schema import schema_of


@click.command("schema")
@click.argument("name", metavar="[NAME]", type=click.Choice(list(FILE_KINDS)), required=False)
def command(name: str | None) -> None:
    """Print the JSON Schema (draft 2020-12) of the files of kind NAME; without NAME, list the kinds.

    The schema describes every key of the file and of the records inside it. Exit code 2 for an unknown NAME.

    \b
    Examples:
      nanguard schema
      nanguard schema incident > incident.schema.json
    """
    if name is None:
        width = max(map(len, FILE_KINDS))
        for each, kind in FILE_KINDS.items():
            say(f"{each:{width}}  {kind.path}")
    else:
        say(orjson.dumps(schema_of(FILE_KINDS[name].record), option=orjson.OPT_INDENT_2).decode())
