#!/usr/bin/env bash
# Run the guard on released wheels of Megatron core and write the table of docs/releases.md:
#   scripts/matrix.sh [FOLDER FOR THE WHEELS [RELEASE...]]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

prepare_venv ".[test]"
FOLDER=$(realpath -m "${1:-${TMPDIR:-/tmp}/nanguard-wheels}")
shift || true
[[ $# -gt 0 ]] || set -- 0.8.0 0.12.3 0.16.1
cd "$ROOT"
exec "$PYTHON" -m tests.matrix "$FOLDER" "$@"
