"""Run the suspect call on the device of another rank. The call goes there as a file, and so does the answer back.

    INCIDENT/peer/rank00005/call.json, tensors.safetensors    from the rank with the origin
    INCIDENT/peer/rank00005/answer.json                       from the peer

Two ranks that agreed beforehand take part, without a collective. Each gives up at its deadline.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Final

import torch

from megatron_nanguard.arbitration import repro
from megatron_nanguard.arbitration.bundle import allowed_operator, read_bundle, write_bundle
from megatron_nanguard.arbitration.call_catcher import CaughtCall
from megatron_nanguard.arbitration.repetition import CANNOT_RUN, run_once, whole
from megatron_nanguard.device import device_of
from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.record_file import from_json, write_record
from megatron_nanguard.records.suspect_call import BAD, FINITE, PeerAnswer

ANSWER_NAME: Final = "answer.json"


def peer_directory(incident: Path, asker: int) -> Path:
    """Directory for the call of one rank and its answer."""
    return incident / "peer" / f"rank{asker:05d}"


def send(incident: Path, call: CaughtCall) -> None:
    """Write a call for the peer.

    Args:
        incident: directory that both ranks see.
        call: as it was saved here.
    """
    write_bundle(peer_directory(incident, call.saved.rank), call)


def receive(incident: Path, asker: int, deadline: float) -> PeerAnswer | str:
    """Wait for the answer of the peer.

    Args:
        incident: directory that both ranks see.
        asker: this rank.
        deadline: seconds to wait.
    Returns:
        The answer, or why there is none.
    """
    directory = peer_directory(incident, asker)
    if not (directory / repro.CALL_NAME).exists():
        return "the call could not be written for a peer"
    if not _wait_for(directory / ANSWER_NAME, deadline):
        return f"no peer: nobody answered within {deadline:g} s"
    try:
        return from_json(PeerAnswer, (directory / ANSWER_NAME).read_bytes(), source=ANSWER_NAME)
    except (OSError, PostmortemError) as error:
        return f"no peer: {error}"


def answer(incident: Path, asker: int, rank: int, device: torch.device, deadline: float) -> PeerAnswer | str:
    """Wait for the call of another rank, run it on this rank's device and write the answer.

    Args:
        incident: directory that both ranks see.
        asker: rank that sends the call.
        rank: this rank.
        device: of this rank.
        deadline: seconds to wait for the call.
    Returns:
        The answer, or why there is none.
    Sync: waits for the device.
    """
    directory = peer_directory(incident, asker)
    if not _wait_for(directory / repro.CALL_NAME, deadline):
        return f"rank {asker} sent no call within {deadline:g} s"
    found = PeerAnswer(rank=rank, device=named(device), host=socket.gethostname(), outcome=_outcome(directory, device))
    try:
        write_record(directory / ANSWER_NAME, found)
    except OSError as error:
        return f"the answer could not be written: {error}"
    return found


def named(device: torch.device) -> str:
    """A device with its model name: "cuda:1 NVIDIA H100"."""
    return f"{device} {device_of(device.type).facts(device.index).name}"


def is_same_hardware(peer: PeerAnswer, device: torch.device) -> bool:
    """Whether a peer's device is of the same model and in the same host as this one, so that its answer says little."""
    mine, its = (name.partition(" ")[2] for name in (named(device), peer.device))
    return (mine, socket.gethostname()) == (its, peer.host)


def _outcome(directory: Path, device: torch.device) -> str:
    """Run a call a few times; bad if one result is. Only operators on the list and loaded Functions are run."""
    try:
        call = read_bundle(directory, whole=True)
        if call.saved.kind == "operator":
            allowed_operator(call.saved.operator)
        plain, tensors = whole(call)
        tries = [repro.is_bad(plain, run_once(call, plain, tensors, device)) for _ in range(3)]
    except (PostmortemError, *CANNOT_RUN) as error:
        return repro.first_line(error)
    return BAD if any(tries) else FINITE


def _wait_for(path: Path, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True
