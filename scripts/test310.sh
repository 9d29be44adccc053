#!/usr/bin/env bash
# The torch-free half of the unit tests on the oldest that we promise: Python 3.10 and click 8.1.
# Where there is no Python 3.10 it says so and returns 0.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

# Folders and files of tests/unit that import neither torch nor Megatron.
TORCH_FREE=(test_errors.py test_settings.py test_architecture.py records postmortem report diagnosis
  cli/test_frame.py cli/test_run.py cli/test_report.py cli/test_hostile.py cli/test_redact.py
  cli/test_schema.py test_printable.py drill/test_spec.py drill/test_grammar.py)

directory=$ROOT/.venv310
if ! ensure_venv "$directory" 3.10; then
  say "no Python 3.10: the torch-free tests run on Python 3.12 only"
  exit 0
fi
install_once "$directory" -e . "click==8.1.*" pytest pytest-timeout jsonschema psutil

cd "$ROOT/tests/unit"
present=()
for name in "${TORCH_FREE[@]}"; do
  if [[ -e $name ]]; then present+=("$name"); fi
done
exec "$directory/bin/python" -m pytest --quiet "$@" "${present[@]}"
