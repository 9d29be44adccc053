#!/usr/bin/env bash
# Make .venv, install torch, Megatron and this package, and run the demo; returns 0 when the demo's incident came.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

prepare_venv .
cd "$ROOT"
exec "$PYTHON" -m megatron_nanguard demo "$@"
