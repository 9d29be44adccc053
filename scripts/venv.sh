# Sourced by the other scripts: finds a Python, makes a virtual environment, installs what a script needs into it once.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HOST_PACKAGES=(torch "megatron-core==0.19.*")

# One thread per rank: eight ranks share the cores of one machine.
export OMP_NUM_THREADS=1

say() { printf '%s\n' "$*" >&2; }

# A pyenv shim may exist for a version that is not switched on, and Debian ships Pythons that cannot make environments.
is_python() { # VERSION CANDIDATE
  "$2" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null
}

find_python() { # VERSION -> prints the path of an interpreter; 1 when there is none
  local candidate
  for candidate in "$(command -v "python$1")" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1"; do
    if [[ -x $candidate ]] && is_python "$1" "$candidate"; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

# Making it again over one that was interrupted is harmless; one of another version may be somebody's own and is left.
ensure_venv() { # DIR VERSION -> 1 when no Python of that version can be had, 2 when DIR is something else
  local python
  if [[ -x $1/bin/python && -x $1/bin/pip ]] && is_python "$2" "$1/bin/python"; then
    return 0
  elif [[ -x $1/bin/python ]] && ! is_python "$2" "$1/bin/python"; then
    say "$1 is not a working environment of Python $2: move or remove it, then run this again"
    return 2
  elif python=$(find_python "$2"); then
    "$python" -m venv "$1"
  elif command -v uv >/dev/null; then
    uv venv --quiet --seed --python "$2" "$1"
  else
    return 1
  fi
}

# Changes when the requirements or the recipe do, and when the tree has been moved (an editable install keeps its path).
fingerprint() { # DIR PACKAGE... -> prints a digest
  local directory=$1
  shift
  { cat "$ROOT/setup.py" "$ROOT/scripts/venv.sh" && printf '%s\n' "$ROOT" "$@"; } |
    "$directory/bin/python" -c "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
}

install_once() { # DIR PACKAGE...: pip install, unless the stamp says that these were installed before
  local directory=$1 stamp digest
  shift
  digest=$(fingerprint "$directory" "$@")
  stamp=$directory/.installed-$digest
  [[ -e $stamp ]] && return 0
  say "installing into ${directory#"$ROOT"/}: $*"
  (cd "$ROOT" && "$directory/bin/python" -m pip install --quiet "$@") || return 1
  touch "$stamp"
}

# Sets PYTHON to the interpreter of .venv, with torch, Megatron and this package (WHAT is "." or ".[test]") in it.
prepare_venv() { # WHAT
  local code=0
  ensure_venv "$ROOT/.venv" 3.12 || code=$?
  if [[ $code == 1 ]]; then
    say "No usable Python 3.12: looked on PATH, under ${PYENV_ROOT:-$HOME/.pyenv}/versions, and for uv." \
      "Install python3.12 with its venv module, or 'pyenv install 3.12', or uv; then run this again."
  fi
  [[ $code == 0 ]] || return 1
  install_once "$ROOT/.venv" "${HOST_PACKAGES[@]}" -e "$1" || return 1
  # Read by the scripts that source this file.
  # shellcheck disable=SC2034
  PYTHON=$ROOT/.venv/bin/python
}
