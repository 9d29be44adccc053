"""The call on a second rank's device, through files, with two threads as ranks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from megatron_nanguard.arbitration.call_catcher import CaughtCall
from megatron_nanguard.arbitration.peer import answer, is_same_hardware, receive, send
from megatron_nanguard.records.suspect_call import PeerAnswer
from tests.unit.arbitration.calls import bad_first_element, catch
from tests.unit.conftest import Log

CPU = torch.device("cpu")
X = torch.tensor([[1.0, 2.0]])


def ask(incident: Path, call: CaughtCall, deadline: float) -> PeerAnswer | str:
    """Both halves, one right after the other."""
    send(incident, call)
    return receive(incident, call.saved.rank, deadline)


def both(incident: Path, call: CaughtCall) -> PeerAnswer | str:
    with ThreadPoolExecutor() as threads:
        served = threads.submit(answer, incident, 5, 6, CPU, 20.0)
        found = ask(incident, call, 20.0)
        assert served.result() == found
    return found


def test_a_call_that_is_bad_on_the_peer_too(tmp_path: Path) -> None:
    found = both(tmp_path, catch((-X).log, "aten.log.default"))

    assert isinstance(found, PeerAnswer)
    assert (found.rank, found.outcome) == (6, "bad")
    assert found.device.startswith("cpu ")


def test_a_device_of_the_same_model_in_the_same_host_is_weak_evidence(tmp_path: Path) -> None:
    found = both(tmp_path, catch((-X).log, "aten.log.default"))

    assert isinstance(found, PeerAnswer)
    assert is_same_hardware(found, CPU)
    assert not is_same_hardware(replace(found, host="another"), CPU)
    assert not is_same_hardware(replace(found, device="cpu another model"), CPU)


def test_a_call_that_only_this_device_gets_wrong(tmp_path: Path) -> None:
    found = both(tmp_path, catch(X.log, "aten.log.default", spoil=bad_first_element))

    assert isinstance(found, PeerAnswer)
    assert found.outcome == "finite"


def test_nobody_answers_within_the_deadline(tmp_path: Path) -> None:
    started = time.monotonic()

    found = ask(tmp_path, catch(X.log, "aten.log.default"), 0.2)

    assert found == "no peer: nobody answered within 0.2 s"
    assert time.monotonic() - started < 5


def test_nobody_asks_within_the_deadline(tmp_path: Path) -> None:
    assert answer(tmp_path, 5, 6, CPU, 0.2) == "rank 5 sent no call within 0.2 s"


def test_an_answer_may_come_long_before_it_is_asked_for(tmp_path: Path) -> None:
    send(tmp_path, catch((-X).log, "aten.log.default"))
    answered = answer(tmp_path, 5, 6, CPU, 0.0)
    assert isinstance(answered, PeerAnswer)
    assert receive(tmp_path, 5, 0.0) == answered


def test_a_directory_that_cannot_be_written_is_no_peer(tmp_path: Path, log: Log) -> None:
    (tmp_path / "peer").touch()

    assert ask(tmp_path, catch(X.log, "aten.log.default"), 9.0) == "the call could not be written for a peer"
    assert len(log.messages) == 1


def test_an_operator_that_is_not_on_the_list_is_refused(tmp_path: Path) -> None:
    call = catch(X.log, "aten.log.default")

    found = both(tmp_path, replace(call, saved=replace(call.saved, operator="aten.from_file.default")))

    assert isinstance(found, PeerAnswer)
    assert found.outcome.startswith("operator 'aten.from_file.default' is not on the list")


def test_a_broken_answer_is_no_peer(tmp_path: Path) -> None:
    directory = tmp_path / "peer" / "rank00005"
    directory.mkdir(parents=True)
    (directory / "answer.json").write_text("{}")

    found = ask(tmp_path, catch(X.log, "aten.log.default"), 1.0)

    assert found == "no peer: answer.json: key rank is missing in PeerAnswer"
