"""Run the guard on released wheels of Megatron core, one small trainer for all, and write docs/releases.md.

    python -m tests.matrix FOLDER RELEASE...      (FOLDER keeps the wheels)

Per release: layout S is one rank, P two data-parallel replicas with overlapped reduction. In each of them the weights
after three steps are compared with and without the guard, then a fault is planted on the last rank.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("core_trainer.py")
LAYOUTS = {"S": 1, "P": 2}
FURTHER = ("six", "regex", "tqdm", "einops", "pyyaml", "setuptools<81")
"""What the older releases import and the environment of the tests lacks: 0.8 asks for pkg_resources."""

PAGE = ROOT / "docs" / "releases.md"
MADE_BELOW = "<!-- The table is made by scripts/matrix.sh. -->"


@dataclass(frozen=True)
class Megatron:
    """A release in a folder of its own, ahead of the installed one on the path."""

    release: str
    path: str

    def environment(self, layout: str, **further: str) -> dict[str, str]:
        """For a run of this release; 0.15 compiles for a card at import if it is told no architecture."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("NANGUARD")}
        fixed = {"PYTHONPATH": self.path, "LAYOUT": layout, "TORCH_CUDA_ARCH_LIST": "8.0", "OMP_NUM_THREADS": "1"}
        return {**ours, **fixed, **further}

    def run(self, *command: str, layout: str = "S", **further: str) -> tuple[int, str]:
        """Exit code and output of one of our commands, in a folder of its own."""
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-m", "megatron_nanguard", *command],
                env=self.environment(layout, **further),
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        return done.returncode, done.stdout


def fetched(release: str, folder: Path) -> Megatron:
    """Install the wheel of a release into a folder, unless it is there."""
    wheel, further = folder / release, folder / "further"
    if not further.exists():
        _pip("--target", str(further), "--no-deps", *FURTHER)
    if not wheel.exists():
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 24, 28)]
        python = "3.12" if tuple(map(int, release.split("."))) >= (0, 17) else "3.10"
        options = ["--no-deps", "--only-binary=:all:", f"--python-version={python}", *platforms]
        _pip("--target", str(wheel), *options, f"megatron-core=={release}")
    # A package with a file of its own hides the megatron.training of the installed release.
    (wheel / "megatron" / "__init__.py").touch()
    for library in wheel.glob("megatron/core/datasets/*-310-*.so"):
        library.unlink()  # of another Python; this trainer reads no dataset
    return Megatron(release, os.pathsep.join(map(str, (ROOT, wheel, further))))


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)


def cells(megatron: Megatron) -> Iterator[str]:
    """What was found of a release: doctor, then each layout. "ok", or what went wrong."""
    code, output = megatron.run("doctor")
    is_right = code == 0 and f"megatron-core {megatron.release} in " in output
    yield "ok" if is_right else _last_line(output)
    for layout, num_ranks in LAYOUTS.items():
        yield _layout(megatron, layout, num_ranks)


def _layout(megatron: Megatron, layout: str, num_ranks: int) -> str:
    command = ("cpu-run", "--nproc", str(num_ranks), str(SCRIPT))
    drill = f"nan@step=2,rank={num_ranks - 1},mb=0,phase=backward,module=decoder.layers.1.mlp"
    _, plain = megatron.run(*command, layout=layout, NANGUARD="0")
    _, guarded = megatron.run(*command, layout=layout, NANGUARD="1")
    if not _digests(plain):
        return f"does not run without us: {_last_line(plain)}"
    if f"guards {num_ranks} ranks" not in guarded or "lost:" in guarded or "without it:" in guarded:
        return f"not fully guarded: {_last_line(guarded)}"
    if _digests(plain) != _digests(guarded):
        return "the weights differ"
    code, faulty = megatron.run(*command, layout=layout, NANGUARD="1", NANGUARD_DRILL=drill)
    began = rf"It began on rank {num_ranks - 1}, backward of micro-batch 0: \S+ in decoder\.layers\.1\.mlp"
    where = began if num_ranks > 1 else began.replace("on rank 0, ", "(on rank 0, )?(in the )?")
    return "ok" if code == 65 and re.search(where, faulty) else f"fault not found: {_last_line(faulty)}"


def _digests(output: str) -> list[str]:
    return sorted(re.findall(r"digest \w+", output))


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("[cpu-run]")]
    return lines[-1][:150].replace("|", "\\|") if lines else "no output"


def table(found: Mapping[str, list[str]]) -> str:
    """The rows as Markdown."""
    in_order = sorted(found.items(), key=lambda item: [int(number) for number in item[0].split(".")])
    rows = [f"| {release} | {' | '.join(row)} |" for release, row in in_order]
    heads = ["| Megatron core | doctor | S: one rank | P: two replicas, overlap |", "|---|---|---|---|"]
    return "\n".join([*heads, *rows, ""])


def main(folder: Path, releases: list[str]) -> int:
    """Run the matrix, print it, write the page; 1 if a cell is not ok."""
    folder.mkdir(parents=True, exist_ok=True)
    text, mark, rows = PAGE.read_text(encoding="utf-8").partition(MADE_BELOW)
    found = dict(_rows(rows))
    for release in releases:
        found[release] = list(cells(fetched(release, folder)))
        print(f"{release}: {', '.join(found[release])}", flush=True)
    PAGE.write_text(f"{text}{mark}\n\n{table(found)}", encoding="utf-8")
    return int(any(cell != "ok" for release in releases for cell in found[release]))


def _rows(text: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of the table as it is: releases that are not run now keep theirs."""
    for line in text.splitlines():
        if line.startswith("| 0."):
            release, *row = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            yield release, row


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
