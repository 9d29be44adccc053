"""`nanguard replay DIR`: run the saved call of an incident on the devices of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from megatron_nanguard.cli import say
from megatron_nanguard.errors import ReplayError
from megatron_nanguard.postmortem.bundles import find_bundle
from megatron_nanguard.records.suspect_call import BAD, FINITE, DeviceOutcome, SavedCall, SavedOutput


@click.command("replay")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--device", "devices", multiple=True, help="A device: cpu, cuda:1, npu ...; may be repeated (default: all kinds)."
)
def command(directory: Path, devices: tuple[str, ...]) -> int:
    """Run the saved call of the newest incident in DIR and compare devices.

    The tensors of the bundle are read and an operator of a fixed list is called; the script in the bundle is not run.
    Exit code 1 when the values are non-finite again on a device, 0 when no device gives non-finite values, 5 when no
    device could run the call.

    \b
    Examples:
      nanguard replay nanguard
      nanguard replay nanguard/runs/RUN/incidents/step_00000123 --device cpu --device cuda:1
    """
    try:
        from megatron_nanguard.arbitration.bundle import read_bundle
        from megatron_nanguard.arbitration.device_comparison import compare_devices, default_devices
    except ModuleNotFoundError as error:
        raise ReplayError(f"a call can only be run where torch is installed: {error}") from None
    call = read_bundle(find_bundle(directory))
    outcomes = compare_devices(call, devices or default_devices())
    _print(call.saved, outcomes)
    *on_devices, _ = outcomes  # the last outcome is that of the reference
    if not any(found.outcome in (BAD, FINITE) for found in on_devices):
        raise ReplayError(
            f"{call.saved.operator} ran on no device; the lines above say why; name other devices with --device"
        )
    return int(any(found.outcome == BAD for found in on_devices))


def _print(saved: SavedCall, outcomes: tuple[DeviceOutcome, ...]) -> None:
    step = "" if saved.step is None else f", step {saved.step}"
    say(f"{saved.operator} in {saved.module or 'no module'}, rank {saved.rank}{step}")
    if saved.rows is not None:
        say(f"{len(saved.rows.rows)} of {saved.rows.num_rows} rows")
    width = max(len(found.device) for found in outcomes) + 2
    _print_outputs("in the run".ljust(max(width, 12)), saved.device or "", saved.outputs)
    for found in outcomes:
        _print_outputs(found.device.ljust(max(width, 12)), found.outcome, found.outputs)


def _print_outputs(place: str, words: str, outputs: tuple[SavedOutput, ...]) -> None:
    bad = [_words(output) for output in outputs if not output.is_finite]
    say("; ".join([f"{place}{words}", *bad]))


def _words(output: SavedOutput) -> str:
    counts = ((output.nan, "NaN"), (output.positive_inf, "+Inf"), (output.negative_inf, "-Inf"))
    numbers = ", ".join(f"{number} {word}" for number, word in counts if number)
    return f"output {output.name}: {numbers}, first at {output.first}"
