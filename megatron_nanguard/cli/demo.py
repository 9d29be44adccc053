"""`nanguard demo`: train a tiny GPT on 8 CPU ranks, plant a NaN and print the report of the incident."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import click

from megatron_nanguard.errors import SettingsError
from megatron_nanguard.postmortem.loading import load_incident
from megatron_nanguard.report import print_report
from megatron_nanguard.report.opened_incident import open_incident

DRILL = "nan@step=3,rank=5,mb=2,phase=backward,module=decoder.layers.3.mlp"
NUM_RANKS = 8
ABORTED = 65
LOG_NAME = "demo.log"

MODEL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--tokenizer-type NullTokenizer --vocab-size 128 --make-vocab-size-divisible-by 8 --mock-data "
    "--micro-batch-size 2 --global-batch-size 16 --train-iters 5 --eval-iters 0 --eval-interval 1000 "
    "--lr 1e-3 --min-lr 1e-4 --lr-decay-style constant --weight-decay 0.01 --clip-grad 1.0 "
    "--log-interval 1 --num-workers 0"
)
LAYOUT = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --bf16"
CPU_KERNELS = (
    "--transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion --no-masked-softmax-fusion "
    "--no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion"
)
INTERESTING = re.compile(r"\[nanguard\]|iteration +\d+/|failed first|Error|^\[cpu-run\]")


@click.command("demo")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("nanguard-demo"),
    show_default=True,
    help="Directory for the files of the demo.",
)
def command(directory: Path) -> int:
    """Train a tiny GPT on 8 CPU ranks (TP2 PP2 DP2), plant a NaN in the backward pass of rank 5 and catch it.

    The installed Megatron runs on gloo; no accelerator is needed. It takes about 20 seconds. Exit code 0 when there
    was an incident.

    \b
    Example:
      nanguard demo --dir /tmp/nanguard-demo
    """
    missing = [name for name in ("torch", "megatron.training") if not _is_installed(name)]
    if missing:
        raise click.ClickException(
            f"the demo runs real Megatron, but {' and '.join(missing)} cannot be found; "
            'pip install torch "megatron-core==0.19.*" (Python 3.12)'
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / LOG_NAME).touch()
    except OSError as error:
        raise SettingsError(f"--dir: {directory} cannot be used: {error.strerror}") from error
    click.echo(f"Training a GPT of 4 layers on {NUM_RANKS} CPU ranks; planting a fault: {DRILL}\n")
    before = _incidents(directory)
    code = _train(directory)
    came = sorted(_incidents(directory) - before)
    if code != ABORTED or not came:
        click.echo(
            f"\nNo incident was written (exit code {code}); the whole output is in {directory / LOG_NAME}", err=True
        )
        return code or 1
    found = load_incident(came[-1])
    click.echo()
    print_report(open_incident(found.incident, found.directory), sys.stdout)
    return 0


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _incidents(directory: Path) -> set[Path]:
    return set(directory.glob("runs/*/incidents/*/incident.json"))


def _train(directory: Path) -> int:
    """Run the ranks, print the interesting lines, and write all lines to a file."""
    from megatron_nanguard import cpurun

    launcher = (sys.executable, "-m", "megatron_nanguard", "cpu-run", "--nproc", str(NUM_RANKS), "--timeout", "300")
    guard = ("--nanguard", "--nanguard-dir", str(directory), "--nanguard-drill", DRILL)
    training = (str(cpurun.pretrain_script()), *f"{MODEL} {LAYOUT} {CPU_KERNELS}".split())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NANGUARD")}
    with (directory / LOG_NAME).open("w") as log:
        ranks = subprocess.Popen(
            (*launcher, *training, *guard),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**environment, "OMP_NUM_THREADS": "1"},
        )
        assert ranks.stdout is not None
        for line in ranks.stdout:
            log.write(line)
            if INTERESTING.search(line):
                click.echo(line, nl=False)
        return ranks.wait()
