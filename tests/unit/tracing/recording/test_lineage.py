"""Writers by byte range: views, overwriting, gaps, and storages that come and go."""

from __future__ import annotations

import torch

from megatron_nanguard.tracing.recording.lineage import Lineage, Writer

FIRST, SECOND, THIRD = Writer(0, 0), Writer(1, 0), Writer(2, 1)


def test_view_has_the_writer_of_what_it_views() -> None:
    lineage, tensor = Lineage(), torch.ones(4, 4)
    lineage.write(tensor, FIRST)
    assert lineage.read(tensor.t()[1:]) == ([FIRST], [])


def test_overwritten_range_has_only_its_new_writer() -> None:
    lineage, tensor = Lineage(), torch.ones(8)
    lineage.write(tensor, FIRST)
    lineage.write(tensor[:4], SECOND)
    assert lineage.read(tensor[:4]) == ([SECOND], [])
    assert lineage.read(tensor[4:]) == ([FIRST], [])
    assert lineage.read(tensor) == ([SECOND, FIRST], [])


def test_strided_write_leaves_older_bytes_between() -> None:
    lineage, tensor = Lineage(), torch.ones(4, 4)
    lineage.write(tensor, FIRST)
    lineage.write(tensor[:, 1], SECOND)
    assert lineage.read(tensor[0]) == ([SECOND, FIRST], [])


def test_bytes_without_a_writer_are_returned_as_a_range() -> None:
    lineage, tensor = Lineage(), torch.ones(8)
    lineage.write(tensor[2:4], FIRST)
    assert lineage.read(tensor) == ([FIRST], [(0, 8), (16, 32)])
    assert lineage.read(torch.ones(2)) == ([], [(0, 8)])


def test_new_storage_at_an_old_address_starts_empty() -> None:
    lineage = Lineage()
    for number in range(50):
        tensor = torch.ones(1000)
        assert not lineage.is_known(tensor)
        lineage.write(tensor, Writer(number, 0))
        del tensor


def test_outputs_of_one_event_are_separate_writers() -> None:
    lineage, tensor = Lineage(), torch.ones(4)
    lineage.write(tensor[:2], FIRST)
    lineage.write(tensor[2:], THIRD)
    assert lineage.read(tensor[2:]) == ([THIRD], [])
