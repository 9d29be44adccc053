"""What the import registers, in fresh interpreters: nothing heavy, nothing when it is off, all of it undone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MODULES = "print([m for m in ('torch', 'megatron', 'wrapt') if m in sys.modules])\n"


def fresh(code: str, *arguments: str, **environ: str) -> str:
    """What a new interpreter prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NANGUARD")}
    command = [sys.executable, "-c", f"import sys\n{code}", *arguments]
    done = subprocess.run(command, env={**clean, **environ}, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_switched_off_the_import_does_nothing_at_all() -> None:
    code = "import megatron_nanguard\nprint(megatron_nanguard._hooks)\n" + MODULES
    assert fresh(code, NANGUARD="0") == "None\n[]"


def test_switched_off_with_flags_on_the_command_line_only_these_are_understood() -> None:
    code = "import megatron_nanguard\nprint([point.name for point in megatron_nanguard._hooks.engine.points])\n"
    assert fresh(code, "--nanguard", "--lr=1", NANGUARD="0") == "['options']"


@pytest.mark.parametrize("switch", ["", "1"])
def test_the_import_registers_every_point_and_imports_neither_torch_nor_megatron(switch: str) -> None:
    code = "import megatron_nanguard\nprint(len(megatron_nanguard._hooks.engine.points))\n" + MODULES
    assert fresh(code, NANGUARD=switch) == "12\n['wrapt']"


def test_enable_and_disable_are_idempotent() -> None:
    code = (
        "import megatron_nanguard as n\nfirst = n._hooks\nn.enable()\nprint(n._hooks is first)\n"
        "print(n.disable(), n.disable(), n._hooks)\nn.enable()\nprint(n._hooks is not None)"
    )
    assert fresh(code) == "True\n[] [] None\nTrue"


def test_a_log_that_the_host_has_set_up_is_left_as_it_is() -> None:
    code = (
        "import logging\nlog = logging.getLogger('megatron_nanguard')\nlog.addHandler(logging.NullHandler())\n"
        "import megatron_nanguard\nprint(len(log.handlers), log.propagate)"
    )
    assert fresh(code) == "1 True"
