#!/usr/bin/env bash
# Timings, paired and interleaved, never part of the tests: scripts/bench.sh [healthy|launcher|replay|report] [PAIRS]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

prepare_venv ".[test]"
cd "$ROOT"
PYTHONPATH=$ROOT/scripts:$ROOT exec "$PYTHON" scripts/bench.py "$@"
