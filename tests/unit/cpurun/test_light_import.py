from __future__ import annotations

import subprocess
import sys


def test_importing_the_room_imports_neither_torch_nor_megatron() -> None:
    code = "import sys, megatron_nanguard.cpurun, tests.import_server; "
    heavy = "print([name for name in ('torch', 'megatron', 'numpy') if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code + heavy], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
