from __future__ import annotations

from typing import Any


def test_moving_to_the_device_is_no_copy(mapped: Any) -> None:
    x = mapped.ones(2)

    assert x.cuda(non_blocking=True) is x
    assert x.to("cuda").data_ptr() == x.to(mapped.device("cuda:1")).data_ptr() == x.data_ptr()


def test_moving_to_the_host_is_a_snapshot(mapped: Any) -> None:
    x = mapped.ones(2)
    snapshots = x.cpu(), x.to("cpu"), x.to(device=mapped.device("cpu"))

    x.zero_()

    assert [snapshot.tolist() for snapshot in snapshots] == [[1.0, 1.0]] * 3


def test_converting_keeps_its_meaning(mapped: Any) -> None:
    x = mapped.ones(2)

    assert x.to(mapped.bfloat16).dtype == x.to("cuda", mapped.bfloat16).dtype == mapped.bfloat16
    assert x.to(x) is x


def test_tensors_say_they_are_on_the_device(mapped: Any) -> None:
    mapped.cuda.set_device(1)

    assert mapped.ones(1).is_cuda
    assert mapped.ones(1).get_device() == 1
    assert not mapped.empty(1, device="meta").is_cuda


def test_the_type_string_is_the_devices(mapped: Any) -> None:
    x = mapped.ones(1)

    assert x.type() == "torch.cuda.FloatTensor"
    assert x.type("torch.cuda.HalfTensor").dtype == mapped.float16
    assert x.type(mapped.float64).dtype == mapped.float64


def test_pinning_and_recording_do_nothing(mapped: Any) -> None:
    x = mapped.ones(1)
    x.record_stream(mapped.cuda.current_stream())

    assert x.pin_memory() is x
    assert not x.is_pinned()
