"""Messages as rank 1 of 4 traces them. The process group is fake and sends nothing; the test writes what arrives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.nn import Parameter
from torch.testing._internal.distributed.fake_pg import FakeStore

from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.trace import CauseLink, OriginKind, RankTrace
from megatron_nanguard.tracing.tracer import Tracer
from tests.unit.tracing.faults import log_of_negative, write_nan

Arrives = Callable[[], None]


@pytest.fixture(scope="module", autouse=True)
def rank_1_of_4() -> Iterator[None]:
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def trace(run: Callable[[Callable[[Tensor], None]], None], microbatch: int | None = 0, at: int | None = 0) -> RankTrace:
    """Trace a function that names its losses."""
    tracer = Tracer([], {}, {}, 1, microbatch)
    with tracer, tracer.at(at, 0, False):
        run(lambda loss: tracer.add_loss(0, loss))
    tracer.finish()
    traced = tracer.summarize("tp1")
    assert traced.broken == ""
    return traced


def receive(buffer: Tensor, source: int = 0) -> None:
    """A receive that brings a NaN, written past the dispatcher as a network does."""
    dist.recv(buffer, source)
    write_nan(buffer, 0)


def test_bad_receive_is_an_arrival_and_no_origin() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        buffer = torch.empty(4)
        receive(buffer)
        loss((buffer * 2).sum())

    traced = trace(run)
    (arrival,) = traced.arrivals
    assert (arrival.operator, arrival.number) == ("recv_", 0)
    assert traced.channels[arrival.channel] == Channel.p2p(0, 1)
    assert (arrival.sent, arrival.arrived, arrival.causes) == ("finite", "nan", ())
    assert arrival.first_used is not None
    assert (arrival.first_used.phase, arrival.first_used.microbatch) == ("forward", 0)
    assert traced.origins == traced.departures == ()
    assert traced.sinks[0].causes == (CauseLink("arrival", 0),)


def test_bad_send_is_a_departure_that_leads_to_its_origin() -> None:
    traced = trace(lambda loss: dist.send(log_of_negative(torch.ones(4)), 2))
    (departure,) = traced.departures
    assert (departure.operator, departure.sent, departure.causes) == ("send", "nan", (CauseLink("origin", 0),))
    assert traced.channels[departure.channel] == Channel.p2p(1, 2)
    assert [origin.operator for origin in traced.origins] == ["log"]


def test_what_an_in_place_collective_sends_is_flagged_before_the_call() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        mine = torch.ones(4) * 2
        dist.all_reduce(mine)
        write_nan(mine, 0)
        loss(mine.sum())

    traced = trace(run)
    (arrival,) = traced.arrivals
    assert arrival.operator == "allreduce_"
    assert traced.channels[arrival.channel] == WORLD
    assert (arrival.sent, arrival.arrived) == ("finite", "nan")


def test_a_bad_result_leads_back_to_the_own_bad_share() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        mine = log_of_negative(torch.ones(4))
        dist.all_reduce(mine)
        loss(mine.sum())

    traced = trace(run)
    assert [(m.sent, m.arrived) for m in traced.arrivals] == [("nan", "nan")]
    assert traced.arrivals[0].causes == (CauseLink("origin", 0),)
    assert traced.sinks[0].causes == (CauseLink("origin", 0), CauseLink("arrival", 0))


def all_gather(out: Tensor, share: Tensor) -> None:
    dist.all_gather_into_tensor(out, share.repeat(1))


def reduce_scatter(out: Tensor, share: Tensor) -> None:
    dist.reduce_scatter_tensor(out[:4], share.repeat(4))


def all_to_all(out: Tensor, share: Tensor) -> None:
    dist.all_to_all_single(out, share.repeat(4))


def coalesced_reduce_scatter(out: Tensor, share: Tensor) -> None:
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.reduce_scatter_tensor(out[:4], share.repeat(4))


@pytest.mark.parametrize("collective", [all_gather, reduce_scatter, all_to_all, coalesced_reduce_scatter])
@pytest.mark.parametrize("bad", [True, False])
def test_share_and_result_are_matched_by_their_list_index(
    collective: Callable[[Tensor, Tensor], None], bad: bool
) -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        out = torch.full((16,), math.nan)
        collective(out, log_of_negative(torch.ones(4)) if bad else torch.ones(4))
        out.detach().numpy()[:] = 1.0
        loss(out.sum())

    traced = trace(run)
    assert [message.sent for message in traced.departures] == (["nan"] if bad else [])
    assert [origin.operator for origin in traced.origins] == (["log"] if bad else [])
    assert traced.sinks == traced.arrivals == ()


WORLD = Channel.group(range(4))


def functional_call(operator: str, share: Any, *more: Any) -> Any:
    """Call a functional collective by its operator and wait; the name of its Python function varies."""
    arriving = getattr(torch.ops._c10d_functional, operator)(share, *more, dist.group.WORLD.group_name)
    wait: Any = torch.ops._c10d_functional.wait_tensor
    return wait(arriving) if isinstance(arriving, Tensor) else [wait(one) for one in arriving]


@pytest.mark.parametrize(
    ("operator", "more"),
    [
        ("all_reduce", ("sum",)),
        ("all_reduce_", ("sum",)),
        ("all_gather_into_tensor", (4,)),
        ("reduce_scatter_tensor", ("sum", 4)),
        ("all_to_all_single", ([1, 1, 1, 1], [1, 1, 1, 1])),
        ("broadcast", (1,)),
    ],
)
@pytest.mark.parametrize("bad", [True, False])
def test_functional_collective_is_a_message(operator: str, more: tuple[Any, ...], bad: bool) -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        share = log_of_negative(torch.ones(4)) if bad else torch.ones(4) * 2
        loss((functional_call(operator, share, *more) * 2).sum())

    traced = trace(run)
    arrivals = [
        (m.operator, traced.channels[m.channel], m.number, m.sent, m.arrived, m.causes) for m in traced.arrivals
    ]
    assert arrivals == ([(operator, WORLD, 0, "nan", "nan", (CauseLink("origin", 0),))] if bad else [])
    assert [origin.operator for origin in traced.origins] == (["log"] if bad else [])


def test_members_of_a_functional_collective_are_followed_separately() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        shares = [torch.ones(4) * 2, log_of_negative(torch.ones(4))]
        healthy, _ = functional_call("all_reduce_coalesced", shares, "sum")
        loss(healthy.sum())

    traced = trace(run)
    assert traced.sinks == traced.arrivals == ()
    assert [(m.operator, m.sent) for m in traced.departures] == [("all_reduce_coalesced", "nan")]


def test_result_of_a_functional_collective_is_looked_at_after_the_wait() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        summed: Any = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        write_nan(summed.elem, 0)
        loss((summed * 2).sum())

    traced = trace(run)
    assert [(m.operator, m.sent, m.arrived, m.causes) for m in traced.arrivals] == [("all_reduce", "finite", "nan", ())]
    assert traced.origins == traced.departures == ()
    assert traced.sinks[0].causes == (CauseLink("arrival", 0),)


def test_functional_and_other_collectives_of_a_group_are_counted_together() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        functional_call("all_reduce", torch.ones(4), "sum")
        dist.all_reduce(log_of_negative(torch.ones(4)))

    assert [(m.operator, m.number) for m in trace(run).departures] == [("allreduce_", 1)]


def test_receiver_of_a_broadcast_sends_nothing() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        buffer = torch.full((4,), math.nan)
        dist.broadcast(buffer, 0)
        buffer.detach().numpy()[:] = 1.0
        loss(buffer.sum())

    assert trace(run).departures == ()


def test_messages_are_counted_per_channel_also_where_nothing_is_traced() -> None:
    group = dist.new_group([0, 1])
    tracer = Tracer([], {}, {}, 1, 1)
    with tracer:
        for microbatch in range(2):
            with tracer.at(microbatch, 0, False):
                share = log_of_negative(torch.ones(4))
                dist.all_reduce(share, group=group)
                dist.all_reduce(share)
                dist.all_reduce(share, group=group)
    tracer.finish()
    traced = tracer.summarize("")
    assert traced.channels == (Channel.group((0, 1)), Channel.group(range(4)))
    assert [(message.channel, message.number) for message in traced.departures] == [(0, 2), (1, 1), (0, 3)]


def test_result_is_looked_at_when_it_is_read_and_not_when_the_call_returns() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        buffer = torch.full((4,), math.nan)
        work: Any = dist.irecv(buffer, 0)
        work.wait()
        buffer.detach().numpy()[:] = 1.0
        loss(buffer.sum())

    traced = trace(run)
    assert traced.sinks == traced.arrivals == ()


def test_copy_that_completes_a_message_is_no_write_of_its_own() -> None:
    # Gloo's reduce-scatter ends in such a copy, from memory that no event has written.
    hidden = torch.full((4,), math.nan)

    def run(loss: Callable[[Tensor], None]) -> None:
        out = torch.empty(4)
        dist.reduce_scatter_tensor(out, torch.ones(16))
        out.copy_(hidden)
        loss(out.sum())

    traced = trace(run)
    assert traced.origins == ()
    assert [arrival.operator for arrival in traced.arrivals] == ["_reduce_scatter_base_"]


def test_buffer_of_a_message_is_released_when_an_untraced_step_reads_it() -> None:
    tracer = Tracer([], {}, {}, 1, 1)
    with tracer:
        buffer = torch.empty(4)
        receive(buffer)
        assert len(tracer._recorder.pending) == 1
        with tracer.at(0, 0, False):
            buffer * 2
        assert len(tracer._recorder.pending) == 0


def test_a_message_in_the_memory_of_a_gradient_says_so() -> None:
    weight = Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    tracer = Tracer([], {}, {weight: "weight"}, 1, None)
    with tracer:
        for tensor in (weight.grad, weight.data, torch.ones(4)):
            dist.all_reduce(tensor)
            write_nan(tensor, 0)
            dist.send(tensor * 1.0, 2)
    tracer.finish()

    assert [message.carries for message in tracer.summarize("tp1").arrivals] == ["gradients", "parameters", ""]


def test_message_to_oneself_is_no_arrival() -> None:
    alone = [dist.new_group([rank]) for rank in range(4)][1]

    def run(loss: Callable[[Tensor], None]) -> None:
        mine = log_of_negative(torch.ones(4))
        dist.all_reduce(mine, group=alone)
        loss(mine.sum())

    traced = trace(run)
    assert traced.arrivals == ()
    assert traced.sinks[0].causes == (CauseLink("origin", 0),)


def test_share_written_unseen_before_it_is_sent_is_an_origin() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        mine = torch.ones(4) * 2
        write_nan(mine, 0)
        dist.send(mine, 2)

    (origin,) = trace(run).origins
    assert (origin.kind, origin.operator) == (OriginKind.UNSEEN, "what send sent")


def test_reduction_outside_of_any_micro_batch_is_traced_in_the_schedule_phase() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        mine = torch.ones(4) * 2
        dist.all_reduce(mine)
        write_nan(mine, 0)
        dist.send(mine * 1.0, 2)

    traced = trace(run, microbatch=None, at=None)
    (arrival,) = traced.arrivals
    assert arrival.first_used is not None
    assert (arrival.first_used.phase, arrival.first_used.microbatch) == ("finalize", None)
    assert traced.departures[-1].causes == (CauseLink("arrival", 0),)


def test_an_arrival_describes_what_was_sent_and_what_came() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        mine = torch.tensor([2.0, -3.0]).half()
        dist.all_reduce(mine)
        write_nan(mine, 0)
        loss(mine.sum())

    (arrival,) = trace(run).arrivals
    assert arrival.put_in is not None and arrival.came_out is not None
    assert (arrival.put_in.shape, arrival.put_in.dtype, arrival.put_in.pattern) == ((2,), "float16", "finite")
    assert (arrival.put_in.lowest, arrival.put_in.highest, arrival.put_in.absmax) == (-3.0, 2.0, 3.0)
    assert (arrival.came_out.dtype, arrival.came_out.pattern, arrival.came_out.absmax) == ("float16", "nan", None)
    assert arrival.line is not None and "test_messages.py:" in arrival.line


def test_a_receive_sent_nothing() -> None:
    def run(loss: Callable[[Tensor], None]) -> None:
        buffer = torch.empty(4)
        receive(buffer)
        loss(buffer.sum())

    (arrival,) = trace(run).arrivals
    assert arrival.put_in is None
    assert arrival.came_out is not None and arrival.came_out.pattern == "nan"


class GatherAndCopy(torch.autograd.Function):
    """An unseen kernel copies what an all-gather has brought into a buffer, which is then used for something else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, buffer: Tensor, brings_nan: bool) -> Tensor:
        work = dist.all_gather_into_tensor(buffer, x.detach(), async_op=True)
        buffer.numpy()[:] = math.nan if brings_nan else 1.0
        work.wait()
        out = torch.empty(16)
        out.numpy()[:] = buffer.numpy()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad[:4], None, None


@pytest.mark.parametrize("brings_nan", [True, False])
def test_what_a_region_has_waited_for_is_looked_at_when_it_ends(
    brings_nan: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accelerator says that a message has completed only when its kernel is over."""
    fake = type(dist.all_reduce(torch.ones(1), async_op=True))
    monkeypatch.setattr(fake, "is_completed", lambda work: False)
    monkeypatch.setattr(fake, "wait", lambda work: dist.Work.wait(work))

    def run(loss: Callable[[Tensor], None]) -> None:
        buffer = torch.zeros(16)
        out = GatherAndCopy.apply(torch.ones(4, requires_grad=True), buffer, brings_nan)
        buffer.numpy()[:] = 0.0
        loss(out.sum() + buffer.sum())

    traced = trace(run)
    assert [arrival.arrived for arrival in traced.arrivals] == (["nan"] if brings_nan else [])
    assert traced.origins == ()


def test_wait_is_as_before_after_the_pass() -> None:
    original = dist.Work.wait
    trace(lambda loss: None)
    assert dist.Work.wait is original
