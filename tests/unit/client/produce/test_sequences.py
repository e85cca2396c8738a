"""Sequence numbers: gaps, doubts, epochs, and numbers and epochs that come to their end."""

from __future__ import annotations

import pytest

from ottla.client.effects import AnySend
from ottla.client.produce.sequences import ProducerIdAndEpoch, add_to_sequence
from ottla.errors import DisconnectedError, OttlaTimeoutError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from tests.unit.client.managers import T0, T1
from tests.unit.client.producing import Batch, Writes, batches, error, is_done, result

LOST = DisconnectedError("the connection broke")
OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number
FORGOTTEN = ErrorCode.unknown_producer_id
LATE = 120_000


def in_flight(*values: str) -> tuple[Writes, list[AnySend]]:
    """A producer with these batches in flight, whose first one was written before."""
    writes = Writes()
    writes.confirmed()
    return writes, [writes.request(value)[0] for value in values]


def next_batch(writes: Writes, at: int | None = None) -> tuple[AnySend, Batch]:
    send = writes.one(Api.PRODUCE, at)
    return send, batches(send)[T0]


def test_two_to_the_31_minus_1_is_followed_by_0() -> None:
    assert add_to_sequence(2**31 - 2, 1) == 2**31 - 1
    assert add_to_sequence(2**31 - 1, 1) == 0
    assert add_to_sequence(2**31 - 3, 10) == 7


def test_a_batch_may_contain_the_wrap() -> None:
    writes = Writes()
    writes.confirmed()
    assert writes.sequences is not None
    writes.sequences.of(writes.accumulator.topics["t"].queues[0]).next = 2**31 - 2
    sends = [writes.request("a", "b", "c")[0], writes.request("d")[0]]
    assert [batches(send)[T0] for send in sends] == [Batch(0, 2**31 - 2, ["a", "b", "c"]), Batch(0, 1, ["d"])]
    writes.reply(sends[0], ErrorCode.message_too_large)
    writes.reply(sends[1], OUT_OF_ORDER)
    seen = []
    for at in (100, 200, 300):
        send, batch = next_batch(writes, at)
        seen.append(batch)
        writes.reply(send)
    assert seen == [Batch(0, 2**31 - 2, ["a", "b"]), Batch(0, 0, ["c"]), Batch(0, 1, ["d"])]


def test_without_an_id_nothing_is_sent() -> None:
    writes = Writes(producer_id=None)
    writes.write("a")
    assert writes.poll() == []
    assert writes.sequences is not None
    writes.sequences.assigned(ProducerIdAndEpoch(7, 3))
    assert next_batch(writes)[1] == Batch(3, 0, ["a"])


# -- a batch that was refused ---------------------------------------------------------------------------------------------


def test_after_a_refused_batch_those_behind_it_start_again_in_a_new_epoch() -> None:
    writes, (a, b) = in_flight("a", "b")
    writes.reply(a, ErrorCode.invalid_record)
    writes.write("c")
    assert writes.poll() == [], "b is in flight"
    writes.reply(b, OUT_OF_ORDER)
    seen = []
    for at in (100, 200):
        send, batch = next_batch(writes, at)
        seen.append(batch)
        writes.reply(send)
    assert seen == [Batch(1, 0, ["b"]), Batch(1, 1, ["c"])]


def test_a_batch_whose_response_was_lost_keeps_its_number_after_a_gap() -> None:
    """With another number it would be doubled if it was written: a broker without state accepts any number."""
    writes, (a, b) = in_flight("a", "b")
    writes.reply(a, ErrorCode.invalid_record)
    writes.fail(b, LOST)
    send, batch = next_batch(writes, 100)
    assert batch == Batch(0, 2, ["b"])
    writes.reply(send)
    writes.write("c")
    assert next_batch(writes)[1] == Batch(1, 0, ["c"])


def test_a_batch_whose_response_was_lost_gets_another_number_once_the_broker_says_that_it_lacks_it() -> None:
    writes, (a, b) = in_flight("a", "b")
    writes.reply(a, ErrorCode.invalid_record)
    writes.fail(b, LOST)
    send, _ = next_batch(writes, 100)
    writes.reply(send, OUT_OF_ORDER)
    assert next_batch(writes, 1_000)[1] == Batch(1, 0, ["b"])


def test_another_partition_begins_the_epoch_when_its_batches_are_written() -> None:
    writes, (a,) = in_flight("a")
    writes.confirmed(T1)
    other, _ = writes.request("x", to=T1)
    writes.reply(a, ErrorCode.invalid_record)
    writes.write("y", to=T1)
    assert writes.poll() == []
    writes.reply(other)
    assert batches(writes.one(Api.PRODUCE)) == {T1: Batch(1, 0, ["y"])}


def test_two_partitions_with_gaps_share_an_epoch() -> None:
    writes, (a,) = in_flight("a")
    writes.confirmed(T1)
    other, _ = writes.request("x", to=T1)
    for send in (a, other):
        writes.reply(send, ErrorCode.invalid_record)
    writes.poll()
    assert writes.sequences is not None
    assert writes.sequences.current == ProducerIdAndEpoch(7, 1)


# -- refused numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [OUT_OF_ORDER, FORGOTTEN])
def test_a_number_is_refused_while_an_earlier_batch_is_to_be_sent_again(code: int) -> None:
    writes, (a, b) = in_flight("a", "b")
    writes.fail(a, LOST)
    writes.reply(b, code)
    seen = []
    for at in (100, 200):
        send, batch = next_batch(writes, at)
        seen.append(batch)
        writes.reply(send)
    assert seen == [Batch(0, 1, ["a"]), Batch(0, 2, ["b"])]


@pytest.mark.parametrize("code", [OUT_OF_ORDER, FORGOTTEN])
def test_the_number_of_the_oldest_batch_is_refused_since_the_broker_has_lost_records(code: int) -> None:
    writes, (a, b) = in_flight("a", "b")
    writes.reply(a, code)
    writes.reply(b, code)
    seen = []
    for at in (100, 200):
        send, batch = next_batch(writes, at)
        seen.append(batch)
        writes.reply(send)
    assert seen == [Batch(1, 0, ["a"]), Batch(1, 1, ["b"])]


def test_a_recreated_topic_has_accepted_a_later_batch_first() -> None:
    """Such a broker has no topic ids. What it lacks is written behind, and not lost."""
    writes, (a, b) = in_flight("a", "b")
    writes.reply(a, ErrorCode.unknown_topic_or_partition)
    writes.reply(b)
    send, batch = next_batch(writes, 100)
    assert batch == Batch(0, 1, ["a"])
    writes.reply(send, OUT_OF_ORDER)
    assert next_batch(writes, 1_000)[1] == Batch(1, 0, ["a"])


@pytest.mark.parametrize("b_was_written", [False, True])
def test_a_recreated_topic_may_have_accepted_a_later_batch_first(b_was_written: bool) -> None:
    """The response to it is lost: it keeps its number, and is sent before the first one, until its outcome is clear."""
    writes, (a, b, c) = in_flight("a", "b", "c")
    writes.reply(a, ErrorCode.unknown_topic_or_partition)
    writes.fail(b, LOST)
    writes.reply(c, OUT_OF_ORDER)
    send, batch = next_batch(writes, 100)
    assert batch == Batch(0, 1, ["a"])
    writes.reply(send, OUT_OF_ORDER)
    send, batch = next_batch(writes, 1_000)
    assert batch == Batch(0, 2, ["b"])
    writes.reply(send, 0 if b_was_written else OUT_OF_ORDER)
    seen = []
    for at in (2_000, 3_000, 4_000)[b_was_written:]:
        send, batch = next_batch(writes, at)
        seen.append(batch)
        writes.reply(send)
    assert seen == [Batch(1, number, [value]) for number, value in enumerate("ac" if b_was_written else "abc")]


@pytest.mark.parametrize("c_was_written", [False, True])
def test_a_batch_in_doubt_is_sent_before_others_that_wait_for_another_epoch(c_was_written: bool) -> None:
    writes, (a, b, c) = in_flight("a", "b", "c")
    writes.reply(b, OUT_OF_ORDER)
    writes.fail(c, LOST)
    writes.reply(a, ErrorCode.invalid_record)
    send, batch = next_batch(writes, 100)
    assert batch == Batch(0, 3, ["c"])
    writes.reply(send, 0 if c_was_written else OUT_OF_ORDER)
    seen = []
    for at in (1_000, 2_000)[c_was_written:]:
        send, batch = next_batch(writes, at)
        seen.append(batch)
        writes.reply(send)
    assert seen == [Batch(1, number, [value]) for number, value in enumerate("b" if c_was_written else "bc")]


# -- expired batches ------------------------------------------------------------------------------------------------------


def expired_then(answer: int, *, lose_b: bool = False) -> tuple[Writes, Batch]:
    """Batch a expires without a response, b, which is younger, gets ``answer``; return what c is sent as."""
    writes = Writes()
    writes.confirmed()
    a, (first,) = writes.request("a")
    writes.mono = 1_000
    b, _ = writes.request("b")
    writes.write("c")
    c = writes.one(Api.PRODUCE)
    writes.fail(a, LOST)
    if lose_b:
        writes.fail(b, LOST)
    again = writes.one(Api.PRODUCE, 1_100)
    sends = writes.poll(LATE)
    assert isinstance(error(first), OttlaTimeoutError)
    writes.fail(again, LOST)
    writes.reply(c, OUT_OF_ORDER)
    if lose_b:
        (b,) = sends
    writes.reply(b, answer)
    send, batch = next_batch(writes, LATE + 500)
    if batch.values == ["b"]:
        writes.reply(send)
        _, batch = next_batch(writes, LATE + 600)
    return writes, batch


@pytest.mark.parametrize("lose_b", [False, True])
def test_a_later_batch_shows_that_an_expired_one_was_written(lose_b: bool) -> None:
    writes, batch = expired_then(0, lose_b=lose_b)
    assert batch == Batch(0, 3, ["c"])
    writes.reply(writes.sent[-1])
    assert next_batch_of_new(writes, "d") == Batch(0, 4, ["d"]), "the epoch goes on"


@pytest.mark.parametrize("lose_b", [False, True])
def test_a_later_batch_shows_that_an_expired_one_was_not_written(lose_b: bool) -> None:
    assert expired_then(OUT_OF_ORDER, lose_b=lose_b)[1] == Batch(1, 1, ["c"])


def test_while_an_expired_batch_is_in_doubt_no_new_one_gets_a_number() -> None:
    writes = Writes()
    writes.confirmed()
    a, _ = writes.request("a")
    writes.mono = 1_000
    b, _ = writes.request("b")
    writes.poll(LATE)
    writes.write("c")
    assert writes.poll() == []
    writes.reply(a)  # late, but an answer
    assert next_batch(writes)[1] == Batch(0, 3, ["c"])
    writes.reply(b)


def test_a_late_refusal_of_an_expired_batch_is_a_gap() -> None:
    writes = Writes()
    writes.confirmed()
    a, _ = writes.request("a")
    writes.mono = 1_000
    b, _ = writes.request("b")
    writes.poll(LATE)
    writes.reply(a, ErrorCode.not_enough_replicas)
    writes.reply(b, OUT_OF_ORDER)
    assert next_batch(writes, LATE + 500)[1] == Batch(1, 0, ["b"])


def test_a_new_epoch_begins_when_nothing_can_show_whether_an_expired_batch_was_written() -> None:
    writes, _ = in_flight("a", "b")
    writes.poll(LATE)
    assert next_batch_of_new(writes) == Batch(1, 0, ["c"])


def test_a_batch_that_expires_after_a_refusal_was_not_written() -> None:
    writes, (a,) = in_flight("a")
    writes.reply(a, ErrorCode.not_enough_replicas, at=LATE - 10)
    writes.poll(LATE)
    assert next_batch_of_new(writes) == Batch(1, 0, ["c"])


def next_batch_of_new(writes: Writes, value: str = "c") -> Batch:
    return batches(writes.request(value)[0])[T0]


# -- the end of the epochs ------------------------------------------------------------------------------------------------


def test_after_the_last_epoch_the_producer_gets_another_id() -> None:
    writes = Writes()
    assert writes.sequences is not None
    writes.sequences.assigned(ProducerIdAndEpoch(7, 2**15 - 2))
    writes.confirmed()
    a, _ = writes.request("a")
    writes.reply(a, ErrorCode.invalid_record)
    b, (delivery,) = writes.request("b")
    assert batches(b)[T0] == Batch(2**15 - 1, 0, ["b"])
    writes.reply(b, OUT_OF_ORDER)
    assert writes.poll(1_000) == []
    assert writes.sequences.current is None
    assert writes.wake_at == 1_000, "another manager looks up the id"
    assert writes.poll() == []
    writes.sequences.assigned(ProducerIdAndEpoch(8, 0))
    send, batch = next_batch(writes)
    assert batch == Batch(0, 0, ["b"])
    assert writes.sequences.current == ProducerIdAndEpoch(8, 0)
    writes.reply(send)
    assert result(delivery).offset == 100


def test_a_batch_of_another_partition_keeps_the_former_id_until_it_is_written() -> None:
    writes = Writes()
    assert writes.sequences is not None
    writes.sequences.assigned(ProducerIdAndEpoch(7, 2**15 - 1))
    writes.confirmed()
    writes.confirmed(T1)
    a, _ = writes.request("a")
    other, (delivery,) = writes.request("x", to=T1)
    writes.reply(a, ErrorCode.invalid_record)
    writes.fail(other, LOST)
    assert writes.poll(1_000) == []
    writes.sequences.assigned(ProducerIdAndEpoch(8, 0))
    again = writes.one(Api.PRODUCE)
    assert batches(again) == {T1: Batch(2**15 - 1, 1, ["x"])}
    writes.reply(again)
    assert is_done(delivery)
    assert batches(writes.request("y", to=T1)[0]) == {T1: Batch(0, 0, ["y"])}
