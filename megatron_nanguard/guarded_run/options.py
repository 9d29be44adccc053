"""The settings of this process, read from the command line or the environment."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from megatron_nanguard.errors import DrillError, SettingsError
from megatron_nanguard.guarded_run.run_drills import RunDrills
from megatron_nanguard.megatron_api.host_program import mend_help_texts
from megatron_nanguard.settings import Settings, add_arguments, flag_of, from_namespace


class Options:
    """The options of this process.

    Attributes:
        settings: None before the command line is parsed.
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add our options to the host's parser, and read them when it has parsed; it reports a bad value as its own."""
        add_arguments(parser)
        parse = parser.parse_known_args

        def parse_known_args(*args: Any, **kwargs: Any) -> Any:
            mend_help_texts(parser)
            namespace, rest = parse(*args, **kwargs)
            try:
                self.settings = _checked(from_namespace(namespace, os.environ))
            except SettingsError as error:
                parser.error(str(error))
            return namespace, rest

        parser.parse_known_args = parse_known_args  # type: ignore[method-assign]

    def known(self) -> Settings:
        """The settings from the command line, else from the environment alone.

        Raises:
            SystemExit: a variable cannot be used.
        """
        if self.settings is None:
            try:
                self.settings = _checked(Settings.from_texts(False, {}, os.environ))
            except SettingsError as error:
                sys.exit(f"nanguard: {error}")
        return self.settings


def _checked(settings: Settings) -> Settings:
    if settings.on and settings.drill:
        try:
            RunDrills(settings.drill, 0, int(os.environ.get("WORLD_SIZE", "1")))
        except DrillError as error:
            raise SettingsError(f"{flag_of('drill')}: {error}") from None
    return settings
