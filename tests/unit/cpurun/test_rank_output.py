from __future__ import annotations

import os

import pytest

from megatron_nanguard.cpurun.rank_output import TAIL_LINES, RankOutput


def drain(output: RankOutput) -> None:
    while output.is_open:
        output.pump(0.1)
    output.close()


def test_a_line_written_in_pieces_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    output = RankOutput()
    stdout, stderr = output.connect(3)

    os.write(stdout, b"first ha")
    output.pump(0.1)
    assert capsys.readouterr().out == ""
    os.write(stdout, b"lf\nrest")
    output.pump(0.1)
    assert capsys.readouterr().out == "[rank3] first half\n"
    os.close(stdout)
    os.close(stderr)
    drain(output)
    assert capsys.readouterr().out == "[rank3] rest\n"


def test_streams_stay_apart_and_broken_text_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    output = RankOutput()
    stdout, stderr = output.connect(0)
    os.write(stdout, b"out\n")
    os.write(stderr, b"err \xff\n")
    os.close(stdout)
    os.close(stderr)

    drain(output)

    assert capsys.readouterr() == ("[rank0] out\n", "[rank0] err �\n")


def test_hidden_ranks_keep_their_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output = RankOutput(show={1})
    stdout, stderr = output.connect(0)
    os.write(stdout, b"".join(b"line %d\n" % n for n in range(TAIL_LINES + 5)))
    os.close(stdout)
    os.close(stderr)

    drain(output)

    assert capsys.readouterr() == ("", "")
    assert output.tail(0) == [f"[rank0] line {n}\n" for n in range(5, TAIL_LINES + 5)]
