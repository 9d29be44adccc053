#!/usr/bin/env bash
# Everything that must be green: format, lint, types, tests (with --long the full grid; further arguments go to pytest).
# Leaves the results in .cache/tests*.xml, and the incident of one multi-rank test in .cache/incident.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

prepare_venv ".[test]"
cd "$ROOT"
mkdir -p .cache
rm -rf .cache/tests*.xml .cache/incident
export NANGUARD_TEST_INCIDENT=$ROOT/.cache/incident

"$PYTHON" -m ruff format --check --quiet .
"$PYTHON" -m ruff check --quiet .
"$PYTHON" -m mypy
"$ROOT/scripts/test310.sh" --junitxml="$ROOT/.cache/tests310.xml"

if [[ $# == 0 || $* == --long ]]; then
  # Two processes run the tests that start no ranks; the tests on ranks use all cores and run one after the other.
  code=0
  "$PYTHON" -m pytest --numprocesses=2 --dist=loadfile --ignore=tests/ranks --ignore=tests/chaos/ranks --junitxml=.cache/tests.xml "$@" || code=$?
  [[ $code -le 1 ]] || exit $code # interrupted, or pytest could not start
  "$PYTHON" -m pytest tests/ranks tests/chaos/ranks --junitxml=.cache/tests_ranks.xml "$@" || code=$?
  exit $code
fi
exec "$PYTHON" -m pytest --junitxml=.cache/tests.xml "$@"
