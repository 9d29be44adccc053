"""The command line: the table of commands, the exit codes of errors, and what all commands print with.

Each command has a file of its own that is imported when the command is called. So `nanguard --help` imports little more
than click, and `nanguard report DIR` runs without torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import click

from megatron_nanguard.errors import NanguardError, PatchDeclined, PostmortemError, ReplayError, SettingsError
from megatron_nanguard.printable import printable_lines, spelled_for
from megatron_nanguard.version import __version__

COMMANDS = {
    "run": "Run a training script with the guard's hooks in place.",
    "patch": "Write the import into the training scripts of a checkout.",
    "cpu-run": "Run a Megatron script on CPU ranks of this machine.",
    "demo": "Train a tiny GPT on 8 CPU ranks and catch a planted NaN.",
    "screen": "Try devices, links and collectives of a job without its model.",
    "grad-check": "Compare the gradients of your own model over all ranks.",
    "doctor": "Say which patch points work in this environment.",
    "report": "Print the incident found in a run directory.",
    "replay": "Run the saved call of an incident on this machine's devices.",
    "reload": "Run the captured step of an incident again in a fresh job.",
    "redact": "Delete saved tensors and samples from a run directory.",
    "schema": "Print the JSON Schema of a file of a run.",
}
"""The commands in the order of `nanguard --help`, each with its line there; its module has the same name."""

# The first match wins, so an error class comes before its base class.
BRANCHES: tuple[tuple[type[NanguardError], int], ...] = (
    (SettingsError, 2),
    (PatchDeclined, 3),
    (PostmortemError, 4),
    (ReplayError, 5),
    (NanguardError, 1),
)

EXIT_CODES = {
    0: "done",
    1: "the command found what it tests for (its --help says what), or it cannot run here",
    2: "an option or argument cannot be used",
    3: "a Megatron function is missing, or differs from the versions that this package knows",
    4: "a file or directory of a run is missing, unreadable or damaged",
    5: "a step or call cannot be run again; reload: the script failed or ended before its step",
    65: "run, cpu-run: the guard ended the run (policy abort); any other code is the script's own",
    130: "interrupted",
}
"""Every exit code of a command, and what it means."""

SECONDS = click.FloatRange(min=0, min_open=True)


class LazyGroup(click.Group):
    """A click group that takes its commands from the table and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command; in every module the click command is called `command`."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table; the method of click would import them all."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes, which are the same for all commands."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def nanguard() -> None:
    """Find out which rank, parameter and parallel group a NaN in Megatron-LM came from."""


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the console script and of `python -m megatron_nanguard`.

    Args:
        args: command line without the program name; None takes it from sys.argv.
    Raises:
        SystemExit: with the exit code of the command, or of the error by the table above.
    """
    try:
        outcome = _invoke(args)
        if callable(outcome):
            outcome()
    except NanguardError as error:
        say(f"nanguard: {error}", err=True)
        sys.exit(exit_code_of(error))
    sys.exit(0 if callable(outcome) else outcome)


def exit_code_of(error: NanguardError) -> int:
    """Return the exit code of one error by its class."""
    return next(code for branch, code in BRANCHES if isinstance(error, branch))


def say(text: str = "", *, err: bool = False) -> None:
    """Print text without colours and a newline, to stdout or stderr.

    The text may quote a file or a path: characters that steer a terminal, or that the encoding of the stream lacks, are
    spelled out.
    """
    stream = sys.stderr if err else sys.stdout
    click.echo(spelled_for(printable_lines(text), stream.encoding), err=err)


def _invoke(args: Sequence[str] | None) -> int | Callable[[], None]:
    """Let click parse the arguments and call one command.

    Returns:
        An exit code, or a function that the caller has to call outside of click. Click turns KeyboardInterrupt,
        EOFError and a broken pipe into exits of its own; a training script must receive all three.
    """
    try:
        outcome = nanguard.main(args, prog_name="nanguard", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    return outcome if callable(outcome) else int(outcome or 0)
