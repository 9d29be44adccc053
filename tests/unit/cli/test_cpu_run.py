from __future__ import annotations

import pytest
from click.testing import CliRunner

from megatron_nanguard.cli.cpu_run import command


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--nproc", "0", __file__], "Invalid value for '--nproc': 0 is not in the range x>=1."),
        (["--show", "0,x", __file__], "Invalid value for '--show': '0,x': rank numbers with commas between them"),
        (["--npro", "2", __file__], "No such option"),
        (["absent.py"], "File 'absent.py' does not exist."),
    ],
)
def test_bad_options_and_scripts_are_named_in_the_error(args: list[str], complaint: str) -> None:
    result = CliRunner().invoke(command, args)

    assert result.exit_code == 2
    assert complaint in result.output
