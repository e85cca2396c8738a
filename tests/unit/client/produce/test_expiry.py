"""Batches that expire: those that were never sent, those of several partitions, and what comes after them."""

from __future__ import annotations

import pytest

from ottla.errors import ConnectionFailedError, OttlaTimeoutError
from ottla.protocol.apis import Api
from tests.unit.client.managers import T0, T1, T2
from tests.unit.client.producing import Batch, Writes, batches, error, is_done, result

LATE = 120_000


@pytest.mark.parametrize("is_behind", [False, True], ids=["first", "behind-another"])
def test_a_batch_that_was_never_sent_leaves_no_gap(is_behind: bool) -> None:
    """Behind another: the first batch of an epoch is alone in flight, and is acknowledged in time."""
    writes = Writes(retries=1_000)
    if is_behind:
        send, (first,) = writes.request("a")
    else:
        writes.connected.clear()
        send, (first,) = writes.request("c", to=T2)  # the only request to a broker that is not connected
    (unsent,) = writes.write("b")
    writes.poll(LATE - 1)
    writes.reply(send)
    result(first)
    writes.cluster.tell(leaders={T0: -1, T1: 2, T2: 1})
    assert writes.poll(LATE) == []
    assert isinstance(error(unsent), OttlaTimeoutError)
    writes.cluster.tell(epoch=9)
    writes.connected.add(1)
    again, _ = writes.request("x")
    assert batches(again) == {T0: Batch(0, int(is_behind), ["x"])}


def test_the_batches_of_several_partitions_expire_each_in_its_time() -> None:
    writes = Writes(leaders={T0: -1, T1: -1, T2: -1})
    writes.cluster.manager.poll(writes.now)
    early = [writes.write("a")[0], writes.write("b", to=T1)[0]]
    writes.mono = 1_000
    late = [writes.write("a", to=T2)[0]]
    writes.poll(LATE)
    assert [type(error(one)) for one in early] == [OttlaTimeoutError] * 2
    assert not is_done(late[0])
    assert writes.wake_at == LATE + 1_000
    writes.poll(LATE + 1_000)
    assert isinstance(error(late[0]), OttlaTimeoutError)
    assert writes.accumulator.used == 0


def test_with_one_in_flight_the_next_batch_waits_for_the_response_to_one_that_has_expired() -> None:
    writes = Writes(max_in_flight_requests_per_connection=1, enable_idempotence=False)
    send, (first,) = writes.request("a")
    writes.mono = 60_000
    (second,) = writes.write("b")
    assert writes.poll(LATE) == []
    assert isinstance(error(first), OttlaTimeoutError)
    writes.reply(send)
    assert isinstance(error(first), OttlaTimeoutError), "its outcome does not change"
    again = writes.one(Api.PRODUCE)
    assert batches(again)[T0].values == ["b"]
    writes.reply(again)
    assert result(second).offset == 100
    assert writes.accumulator.used == 0


def test_the_memory_of_a_batch_that_expires_in_flight_is_freed_once() -> None:
    writes = Writes()
    send, _ = writes.request("a")
    writes.poll(LATE)
    assert writes.accumulator.used == 0
    freed = writes.accumulator.freed
    writes.reply(send)
    assert (writes.accumulator.used, writes.accumulator.freed) == (0, freed)


def test_the_longest_delivery_timeout_is_no_moment_in_the_past() -> None:
    writes = Writes(delivery_timeout_ms=2**31 - 1)
    writes.mono = 10_000_000_000
    writes.reason = ConnectionFailedError("the broker could not be reached", {"one:9092": "refused"})
    _, (delivery,) = writes.request("a")
    assert not is_done(delivery)
    assert writes.wake_at == 10_000_000_000 + 2**31 - 1
