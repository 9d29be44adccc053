"""The shell scripts: they parse, and they find a usable Python wherever it lies or say what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASH = shutil.which("bash") or "bash"
HERE = "{}.{}".format(*sys.version_info)
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / "scripts" / "check", ROOT / ".ci" / "run"]


def bash(code: str, path: Path, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code after sourcing venv.sh, with one folder on PATH besides those of the system's own tools."""
    source = f'set -euo pipefail; source "{root}/scripts/venv.sh"; {code}'
    env = {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(path), **environment}
    return subprocess.run([BASH, "-c", source], capture_output=True, text=True, env=env, check=False)


def executable(path: Path, text: str) -> Path:
    """Write a shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def real_python(path: Path) -> Path:
    """This very Python under another name, as an installed one would be."""
    return executable(path, f'exec "{os.path.realpath(sys.executable)}" "$@"')


def tree(folder: Path) -> Path:
    """The few files of the project that venv.sh looks at, in a folder of their own."""
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "venv.sh", folder / "scripts")
    (folder / "setup.py").write_text("", encoding="utf-8")
    return folder


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_is_valid_bash(script: Path) -> None:
    done = subprocess.run([BASH, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.name != "venv.sh"], ids=lambda path: path.name)
def test_script_can_be_run_and_venv_sh_is_sourced(script: Path) -> None:
    assert os.access(script, os.X_OK)


def test_python_is_found_on_path(tmp_path: Path) -> None:
    python = real_python(tmp_path / f"python{HERE}")
    assert bash(f"find_python {HERE}", tmp_path).stdout == f"{python}\n"


@pytest.mark.parametrize("variable", ["PYENV_ROOT", "HOME"])
def test_python_is_found_among_pyenv_versions(tmp_path: Path, variable: str) -> None:
    folder = tmp_path if variable == "PYENV_ROOT" else tmp_path / ".pyenv"
    python = real_python(folder / "versions" / f"{HERE}.99" / "bin" / f"python{HERE}")
    done = bash(f"find_python {HERE}", tmp_path / "empty", **{variable: str(tmp_path)})
    assert done.stdout == f"{python}\n"


def test_a_shim_that_cannot_run_is_passed_over(tmp_path: Path) -> None:
    executable(tmp_path / "shims" / f"python{HERE}", "echo 'command not found' >&2; exit 127")
    python = real_python(tmp_path / "versions" / f"{HERE}.99" / "bin" / f"python{HERE}")
    assert bash(f"find_python {HERE}", tmp_path / "shims", PYENV_ROOT=str(tmp_path)).stdout == f"{python}\n"


def test_a_python_of_another_version_is_passed_over(tmp_path: Path) -> None:
    real_python(tmp_path / "python3.99")
    done = bash("find_python 3.99", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")


def test_an_environment_is_made_and_left_alone_afterwards(tmp_path: Path) -> None:
    real_python(tmp_path / f"python{HERE}")
    assert bash(f"ensure_venv {tmp_path}/venv {HERE}", tmp_path).returncode == 0
    before = (tmp_path / "venv" / "pyvenv.cfg").stat().st_mtime_ns
    assert bash(f"ensure_venv {tmp_path}/venv {HERE}", tmp_path).returncode == 0
    assert (tmp_path / "venv" / "pyvenv.cfg").stat().st_mtime_ns == before


def test_an_environment_of_another_version_is_never_touched(tmp_path: Path) -> None:
    executable(tmp_path / "venv" / "bin" / "python", "exit 1")
    done = bash(f"ensure_venv {tmp_path}/venv {HERE}", tmp_path)
    assert done.returncode == 2
    assert "move or remove it" in done.stderr
    assert [path.name for path in (tmp_path / "venv").rglob("*")] == ["bin", "python"]


def test_uv_is_asked_when_there_is_no_python(tmp_path: Path) -> None:
    executable(tmp_path / "uv", f'echo "$@" > {tmp_path}/asked')
    assert bash(f"ensure_venv {tmp_path}/venv 3.99", tmp_path).returncode == 0
    assert (tmp_path / "asked").read_text() == f"venv --quiet --seed --python 3.99 {tmp_path}/venv\n"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    project = tree(tmp_path / "project")
    hidden = "find_python() { return 1; }; command() { return 1; }; prepare_venv ."
    done = bash(hidden, tmp_path / "empty", root=project)
    assert done.returncode == 1
    assert "No usable Python 3.12" in done.stderr
    assert "pyenv install 3.12" in done.stderr
    assert not (project / ".venv").exists()


def test_requirements_are_installed_once_and_again_when_they_change(tmp_path: Path) -> None:
    project = tree(tmp_path / "project")
    log = tmp_path / "pip.log"
    executable(
        project / ".venv" / "bin" / "python",
        f'if [[ $1 == -m ]]; then echo "$@" >> {log}; else exec "{sys.executable}" "$@"; fi',
    )
    install = f'install_once "{project}/.venv" click rich'
    for _ in range(2):
        assert bash(install, tmp_path, root=project).returncode == 0
    assert log.read_text().splitlines() == ["-m pip install --quiet click rich"]

    (project / "setup.py").write_text("install_requires = ['wrapt']", encoding="utf-8")
    assert bash(install, tmp_path, root=project).returncode == 0
    assert len(log.read_text().splitlines()) == 2


def test_a_failed_install_is_tried_again(tmp_path: Path) -> None:
    project = tree(tmp_path / "project")
    executable(
        project / ".venv" / "bin" / "python", f'if [[ $1 == -m ]]; then exit 1; else exec "{sys.executable}" "$@"; fi'
    )
    done = bash(f'install_once "{project}/.venv" click', tmp_path, root=project)
    assert done.returncode == 1
    assert list((project / ".venv").glob(".installed-*")) == []
