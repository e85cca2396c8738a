"""``Producer`` on the embedded broker: where records go, how failures are reported, threads, forks and endings."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from ottla import Admin, Broker, Delivery, OttlaError, Producer, RecordMetadata, TopicPartition
from ottla.client.produce.metrics import NAMES
from ottla.errors import (
    ClosedError,
    ConnectionFailedError,
    ForkedError,
    MessageTooLargeError,
    OttlaTimeoutError,
    PolicyViolationError,
)
from ottla.records.murmur2 import murmur2
from tests.end_to_end.producing import PARTITIONS, new_topic, started, stored

SOON = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with started() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    with new_topic(broker) as name:
        yield name


def new(broker: Broker, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=broker.bootstrap_servers, **settings)


# -- where records go ------------------------------------------------------------------------------------------------------


def test_a_record_is_written_as_it_was_sent(broker: Broker, topic: str) -> None:
    with new(broker) as producer:
        delivery = producer.send(topic, b"value", b"key", partition=2, headers=[("a", b"1"), ("a", None)], timestamp=1_234)
        assert delivery.result(SOON) == RecordMetadata(topic, 2, 0, 1_234)
    (record,) = stored(broker, topic)
    assert (record.value, record.key, record.partition, record.timestamp) == (b"value", b"key", 2, 1_234)
    assert record.headers == (("a", b"1"), ("a", None))


def test_records_of_a_key_go_to_its_partition_in_order(broker: Broker, topic: str) -> None:
    with new(broker, batch_size=400, linger=0) as producer:
        for number in range(3_000):
            producer.send(topic, b"%d" % number, b"k%d" % (number % 7))
    by_key: dict[bytes | None, list[int]] = {}
    for record in stored(broker, topic):
        assert record.key is not None
        assert record.value is not None
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % PARTITIONS
        by_key.setdefault(record.key, []).append(int(record.value))
    assert by_key == {b"k%d" % key: list(range(key, 3_000, 7)) for key in range(7)}


def test_records_without_a_key_fill_one_batch_after_the_other(broker: Broker, topic: str) -> None:
    with new(broker, batch_size=1_000, linger=60, partitioner_adaptive_partitioning_enable=False) as producer:
        deliveries = [producer.send(topic, b"%04d" % number) for number in range(2_000)]
        producer.flush()
        places = [delivery.result() for delivery in deliveries]
    counts = [sum(place.partition == number for place in places) for number in range(PARTITIONS)]
    assert min(counts) > 60, counts
    moves = sum(one.partition != other.partition for one, other in pairwise(places))
    assert moves < 40, "a partition gets a whole batch, some 60 records, before another one does"


def test_a_partitioner_gets_the_key_and_chooses(broker: Broker, topic: str) -> None:
    asked = []

    def partitioner(topic: str, key: bytes | None, partitions: int) -> int:
        asked.append((topic, key, partitions))
        return 1

    with new(broker, partitioner=partitioner) as producer:
        assert producer.send(topic, b"", "ü").result(SOON).partition == 1
        assert producer.send(topic, b"", partition=2).result(SOON).partition == 2
    assert asked == [(topic, "ü".encode(), PARTITIONS)]


@pytest.mark.parametrize("answer", [PARTITIONS, -1, "1", None, True], ids=repr)
def test_a_partitioner_that_returns_no_partition_fails_the_send(broker: Broker, topic: str, answer: Any) -> None:
    with new(broker, partitioner=lambda topic, key, partitions: answer) as producer:
        producer.partitions_for(topic)
        with pytest.raises(ValueError, match="the partitioner returned"):
            producer.send(topic, b"")


def test_serializers_get_keys_and_values(broker: Broker, topic: str) -> None:
    with new(broker, key_serializer=str, value_serializer=repr) as producer:
        producer.send(topic, {"a": 1}, 5)
        producer.send(topic, None, 6)  # a null is a null
    assert {(record.key, record.value) for record in stored(broker, topic)} == {(b"5", b"{'a': 1}"), (b"6", None)}


@pytest.mark.parametrize("wrong", [(), ("k",), ("k", "v", [("h", b"1")])])
def test_a_tuple_is_a_pair(broker: Broker, topic: str, wrong: tuple[Any, ...]) -> None:
    text = rf"records\[1\] must be a value or a pair \(key, value\), not a tuple of {len(wrong)}"
    with new(broker) as producer, pytest.raises(ValueError, match=text):
        producer.send_many(topic, [("key", "sent"), wrong, "not sent"])
    assert [(record.key, record.value) for record in stored(broker, topic)] == [(b"key", b"sent")]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(broker: Broker, topic: str, codec: str) -> None:
    with new(broker, compression_type=codec) as producer:
        deliveries = producer.send_many(topic, [(b"key", b"%d" % number * 50) for number in range(500)])
        producer.flush()
        rate = next(value for name, value in producer.metrics().items() if name.name == "compression-rate-avg")
    assert [record.value for record in stored(broker, topic)] == [b"%d" % number * 50 for number in range(500)]
    assert [delivery.result().offset for delivery in deliveries] == list(range(500))
    assert rate == 1.0 if codec == "none" else rate < 0.5


def test_partitions_for(broker: Broker, topic: str) -> None:
    with new(broker, max_block=0.5) as producer:
        assert producer.partitions_for(topic) == [0, 1, 2]
        with pytest.raises(OttlaTimeoutError, match=r"topic 'missing' was not found within 0.5 s: .*UNKNOWN_TOPIC_OR_PARTITION"):
            producer.partitions_for("missing")


# -- what cannot be sent ---------------------------------------------------------------------------------------------------


async def awaits(delivery: Delivery) -> None:
    del delivery


class Awaits:
    async def __call__(self, delivery: Delivery) -> None:
        del delivery

    async def method(self, delivery: Delivery) -> None:
        del delivery


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"value": {"a": 1}}, TypeError, "a value must be bytes, str or None, not {'a': 1}"),
        ({"value": 5}, TypeError, "a value must be bytes"),
        ({"key": 5}, TypeError, "a key must be bytes"),
        ({"headers": [("a", 5)]}, TypeError, "the value of a header must be bytes"),
        ({"headers": ["ab"]}, TypeError, "a header is a pair of a name"),
        ({"headers": [(b"a", b"b")]}, TypeError, "a header is a pair of a name"),
        ({"headers": 7}, TypeError, "headers are pairs"),
        ({"partition": -1}, ValueError, "partition must be from 0"),
        ({"partition": "1"}, TypeError, "partition must be a whole number"),
        ({"partition": True}, TypeError, "partition must be a whole number"),
        ({"partition": 2**31}, ValueError, "partition must be from 0"),
        ({"timestamp": -5}, ValueError, "timestamp must be milliseconds"),
        ({"timestamp": 2**63}, ValueError, "timestamp must be milliseconds"),
        ({"timestamp": 1.5}, TypeError, "timestamp must be whole milliseconds"),
        ({"value": b"x" * 1_048_576}, MessageTooLargeError, "see max.request.size"),
        ({"on_delivery": 5}, TypeError, "on_delivery"),
        ({"key": "\ud800"}, ValueError, "a key cannot be encoded"),
    ],
    ids=str,
)
def test_bad_arguments(broker: Broker, topic: str, arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with new(broker) as producer:
        producer.send(topic, b"before", partition=0)
        with pytest.raises(error, match=text):
            producer.send(topic, **{"value": b"", **arguments})
    assert [record.value for record in stored(broker, topic)] == [b"before"]


@pytest.mark.parametrize(
    "callback", [awaits, partial(awaits), Awaits(), Awaits().method], ids=["function", "partial", "object", "method"]
)
def test_a_callback_that_would_have_to_be_awaited(broker: Broker, topic: str, callback: Any) -> None:
    with new(broker) as producer, pytest.raises(TypeError, match="on_delivery must be a function that is not async"):
        producer.send(topic, b"", on_delivery=callback)
    assert stored(broker, topic) == []


@pytest.mark.parametrize("name", ["", "a/b", 5, None, b"topic", ["topic"]], ids=repr)
def test_bad_topics(broker: Broker, name: Any) -> None:
    with new(broker, max_block=0.3) as producer, pytest.raises((TypeError, ValueError, OttlaError), match="topic"):
        producer.send(name, b"")


def test_a_partition_that_does_not_exist_is_named(broker: Broker, topic: str) -> None:
    with new(broker, max_block=0.3) as producer, pytest.raises(OttlaTimeoutError, match=r"partitions 0 to 2, and no partition 7"):
        producer.send(topic, b"", partition=7)


def test_a_partition_that_is_added_while_a_record_waits_for_it(broker: Broker, topic: str) -> None:
    with new(broker) as producer, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        producer.partitions_for(topic)
        threading.Timer(0.3, lambda: admin.create_partitions({topic: PARTITIONS + 2})).start()
        assert producer.send(topic, b"", partition=PARTITIONS + 1).result(SOON).partition == PARTITIONS + 1


def test_a_record_that_the_topic_does_not_allow(broker: Broker, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.alter_configs("topic", topic, {"max.message.bytes": "2000"})
    with new(broker) as producer:
        good = producer.send(topic, b"before", partition=0)
        delivery = producer.send(topic, b"x" * 5_000, partition=0)
        after = producer.send(topic, b"after", partition=0)
        with pytest.raises(MessageTooLargeError, match=f"{topic}-0"):
            delivery.result(SOON)
        assert (good.result(SOON).offset, after.result(SOON).offset) == (0, 1), "the others were sent without it"


def test_memory_that_does_not_become_free(broker: Broker, topic: str) -> None:
    with new(broker, buffer_memory=50_000, max_block=0.5, batch_size=10_000) as producer:
        producer.send(topic, b"", partition=0).result(SOON)
        broker.faults.freeze()
        text = rf"no memory .* within 0.5 s: buffer.memory is 50000, held by unacknowledged records of {topic}-\d with \d+ bytes"
        with pytest.raises(OttlaTimeoutError, match=text) as raised:
            producer.send_many(topic, [bytes(1_000)] * 200)
        assert "flush()" in str(raised.value.hint)
        broker.faults.clear()
        producer.send(topic, bytes(1_000)).result(SOON)
    assert len(stored(broker, topic)) > 30


def test_no_broker() -> None:
    with Producer(bootstrap_servers="localhost:1", max_block=0.3) as producer:
        with pytest.raises(ConnectionFailedError, match=r"no broker could be reached within 0\.3 s: localhost:1"):
            producer.send("topic", b"")
        assert not producer.health().ready
        assert "localhost:1" in producer.health().reasons[0]


# -- how outcomes are reported ---------------------------------------------------------------------------------------------


def refused(broker: Broker, **more: Any) -> None:
    broker.faults.fail("Produce", "POLICY_VIOLATION", **more)


def test_callbacks_run_on_the_thread_that_calls(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    called: list[tuple[int, RecordMetadata]] = []

    def on_delivery(delivery: Delivery) -> None:
        called.append((threading.get_ident(), delivery.result()))
        if len(called) == 1:
            raise LookupError("in a callback")

    with new(broker) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=0, on_delivery=on_delivery)
        producer.flush()
        assert [(thread, place.offset) for thread, place in called] == [(threading.get_ident(), number) for number in range(5)]
    assert "the callback of a delivery failed" in caplog.text
    assert "in a callback" in caplog.text


def test_ctrl_c_in_a_callback_leaves_the_others_to_the_next_call(broker: Broker, topic: str) -> None:
    called: list[int] = []

    def on_delivery(delivery: Delivery) -> None:
        called.append(delivery.result().offset)
        if len(called) == 2:
            raise KeyboardInterrupt

    with new(broker) as producer:
        for _ in range(4):
            producer.send(topic, b"", partition=0, on_delivery=on_delivery)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        producer.poll()
    assert called == [0, 1, 2, 3]


def test_callbacks_of_threads_that_send_at_once_run_once(broker: Broker, topic: str) -> None:
    called: list[int] = []

    def run() -> None:
        for _ in range(500):
            producer.send(topic, b"", partition=0, on_delivery=lambda delivery: called.append(delivery.result().offset))

    with new(broker, linger=0) as producer:
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(called) == list(range(2_000))


def test_a_failure_that_only_some_callbacks_got_is_raised(broker: Broker, topic: str) -> None:
    called: list[bool] = []
    with new(broker, linger=60) as producer:
        producer.partitions_for(topic)
        refused(broker)
        producer.send(topic, b"", partition=0)
        producer.send(topic, b"", partition=0, on_delivery=lambda delivery: called.append(delivery.done()))
        with pytest.raises(PolicyViolationError):
            producer.flush()
        assert called == [True]


def test_a_callback_may_send(broker: Broker, topic: str) -> None:
    with new(broker) as producer:
        producer.send(topic, b"first", partition=0, on_delivery=lambda delivery: producer.send(topic, b"second", partition=0))
        producer.flush()
        producer.flush()
    assert [record.value for record in stored(broker, topic)] == [b"first", b"second"]


def test_many_callbacks_that_send_are_not_nested(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with new(broker) as producer:
        for number in range(1_500):
            producer.send(topic, b"%d" % number, partition=0, on_delivery=lambda delivery: producer.send(topic, b"", partition=1))
        producer.flush()
        producer.flush()
    assert not caplog.records
    assert Counter(record.partition for record in stored(broker, topic)) == {0: 1_500, 1: 1_500}


def test_the_callback_of_a_record_that_has_expired_may_send(broker: Broker, topic: str) -> None:
    errors: list[type[Exception]] = []

    def again(delivery: Delivery) -> None:
        try:
            delivery.result()
        except OttlaTimeoutError as error:
            errors.append(type(error))
            producer.send(topic, b"again", partition=0)

    with new(broker, delivery_timeout=0.3, request_timeout=0.3, linger=0) as producer:
        producer.partitions_for(topic)
        broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", times=None)
        for _ in range(2):
            producer.send(topic, b"", partition=0, on_delivery=again)
        producer.flush()
        broker.faults.clear()
        producer.flush()
    assert errors == [OttlaTimeoutError] * 2
    assert [record.value for record in stored(broker, topic)][-1] == b"again"


def test_a_failure_is_raised_by_result_and_only_there(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with new(broker) as producer:
        refused(broker)
        delivery = producer.send(topic, b"", partition=0)
        with pytest.raises(PolicyViolationError, match=f"writing 1 record to {topic}-0"):
            delivery.result(SOON)
        assert delivery.done()
        producer.flush()
    del delivery
    gc.collect()
    assert "nothing has looked" not in caplog.text


def test_a_failure_is_raised_by_flush_once(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with new(broker) as producer:
        refused(broker)
        producer.send(topic, b"", partition=0)
        with pytest.raises(PolicyViolationError):
            producer.flush()
        producer.flush()
    gc.collect()
    assert "nothing has looked" not in caplog.text


def test_a_failure_is_raised_by_flush_if_only_an_earlier_one_was_looked_at(broker: Broker, topic: str) -> None:
    with new(broker) as producer:
        refused(broker)
        refused(broker)
        first, second = (producer.send(topic, b"", partition=number) for number in range(2))
        with pytest.raises(PolicyViolationError, match=f"{topic}-0"):
            first.result(SOON)
        with pytest.raises(PolicyViolationError, match=f"{topic}-1"):
            producer.flush()
        producer.flush()
        del first, second


def test_a_failure_is_raised_by_close(broker: Broker, topic: str) -> None:
    refused(broker)
    with pytest.raises(PolicyViolationError), new(broker) as producer:
        producer.send(topic, b"", partition=0)


def test_a_failure_does_not_hide_the_exception_of_the_block(broker: Broker, topic: str) -> None:
    def fail() -> None:
        with new(broker) as producer:
            producer.send(topic, b"", partition=0)
            raise LookupError("of the block")

    refused(broker)
    with pytest.raises(LookupError) as caught:
        fail()
    assert "closing the producer failed, too" in caught.value.__notes__[0]


def test_a_failure_that_nothing_looks_at_is_logged_once(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with new(broker) as producer:
        refused(broker, times=2)
        for partition in (0, 1):
            delivery = producer.send(topic, b"", partition=partition)
            while not delivery.done():
                time.sleep(0.01)
            del delivery
        with pytest.raises(PolicyViolationError):
            producer.flush()  # the first one
        gc.collect()
    assert caplog.text.count("and nothing has looked at the outcome") == 1


def test_a_delivery_can_be_awaited(broker: Broker, topic: str) -> None:
    async def wait() -> list[RecordMetadata]:
        return list(await asyncio.gather(*(producer.send(topic, b"", partition=number) for number in range(3))))

    with new(broker) as producer:
        assert [place.partition for place in asyncio.run(wait())] == [0, 1, 2]


def test_a_result_that_does_not_come_in_time(broker: Broker, topic: str) -> None:
    with new(broker) as producer:
        producer.send(topic, b"", partition=0).result(SOON)
        with broker.faults.freeze():
            delivery = producer.send(topic, b"", partition=0)
            with pytest.raises(OttlaTimeoutError, match="it may still be written"):
                delivery.result(0.1)
            with pytest.raises(OttlaTimeoutError, match="1 record has no outcome"):
                producer.flush(0.1)
        assert delivery.result(SOON).offset == 1


# -- faults ----------------------------------------------------------------------------------------------------------------


def test_a_lost_response_doubles_and_reorders_nothing(broker: Broker, topic: str) -> None:
    broker.faults.drop("Produce", at="reply", times=5, after=1)
    broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", times=3, after=9)
    with new(broker, batch_size=2_000, linger=0) as producer:
        for number in range(3_000):
            producer.send(topic, b"%05d" % number, partition=0)
    assert [record.value for record in stored(broker, topic)] == [b"%05d" % number for number in range(3_000)]


def test_a_batch_that_is_too_large_is_divided(broker: Broker, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.alter_configs("topic", topic, {"max.message.bytes": "1500"})
    called: list[int] = []
    with new(broker, batch_size=16_000, linger=1) as producer:
        deliveries = [
            producer.send(topic, b"%04d" % n, partition=0, on_delivery=lambda one: called.append(one.result().offset))
            for n in range(1_000)
        ]
        producer.flush()
        assert [delivery.result().offset for delivery in deliveries] == list(range(1_000))
        splits = next(value for name, value in producer.metrics().items() if name.name == "batch-split-total")
    assert splits >= 3
    assert sorted(called) == list(range(1_000))
    assert [record.value for record in stored(broker, topic)] == [b"%04d" % n for n in range(1_000)]


def test_a_full_disk(broker: Broker, topic: str) -> None:
    with new(broker) as producer:
        producer.send(topic, b"0", partition=0).result(SOON)
        with broker.faults.fill_disk(topic) as full:
            delivery = producer.send(topic, b"1", partition=0)
            full.wait(2)
        assert delivery.result(SOON).offset == 1
    assert [record.value for record in stored(broker, topic)] == [b"0", b"1"]


def test_a_record_that_is_never_acknowledged_fails_in_time(broker: Broker, topic: str) -> None:
    settings = {"delivery_timeout": 1.0, "request_timeout": 0.5, "linger": 0}
    with new(broker, **settings) as producer:
        producer.send(topic, b"", partition=0).result(SOON)
        broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", times=None)
        delivery = producer.send(topic, b"", partition=0)
        with pytest.raises(OttlaTimeoutError, match=rf"1 record for {topic}-0 not acknowledged within 1 s: .*NOT_ENOUGH_REPLICAS"):
            delivery.result(SOON)
        broker.faults.clear()
        assert producer.send(topic, b"", partition=0).result(SOON).offset == 1


def test_a_topic_that_is_deleted_and_created_again(broker: Broker, topic: str) -> None:
    with new(broker) as producer, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        for _ in range(3):
            producer.send(topic, b"before", partition=0).result(SOON)
        admin.delete_topics([topic])
        admin.create_topics({topic: PARTITIONS})
        assert [producer.send(topic, b"after", partition=0).result(SOON).offset for _ in range(3)] == [0, 1, 2]


# -- threads, processes, endings -------------------------------------------------------------------------------------------


def test_threads_that_share_a_producer(broker: Broker, topic: str) -> None:
    def run(thread: int) -> None:
        for number in range(2_000):
            producer.send(topic, b"%d %d" % (thread, number), partition=number % PARTITIONS)

    with new(broker, batch_size=3_000, buffer_memory=40_000) as producer:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen: dict[tuple[int, bytes], list[int]] = {}
    for record in stored(broker, topic):
        assert record.value is not None
        thread_number, number = record.value.split()
        seen.setdefault((record.partition, thread_number), []).append(int(number))
    assert seen == {
        (part, b"%d" % thread): list(range(part, 2_000, PARTITIONS)) for part in range(PARTITIONS) for thread in range(4)
    }


def test_a_closed_producer(broker: Broker, topic: str) -> None:
    producer = new(broker)
    producer.send(topic, b"", partition=0)
    producer.close()
    producer.close()
    for call in (lambda: producer.send(topic, b""), producer.flush, lambda: producer.partitions_for(topic), producer.poll):
        with pytest.raises(ClosedError, match="the producer is closed"):
            call()
    with pytest.raises(ClosedError, match="the producer is closed"), producer:
        pass
    assert (producer.health().live, producer.health().reasons, producer.metrics()) == (False, ("the producer is closed",), {})
    assert len(stored(broker, topic)) == 1


def test_closing_a_producer_that_was_not_used() -> None:
    producer = Producer(bootstrap_servers="localhost:1")
    assert producer.health().live
    assert producer.metrics() == {}
    producer.close()


def test_closing_while_a_record_waits_for_its_topic(broker: Broker) -> None:
    raised: list[BaseException] = []

    def send() -> None:
        try:
            producer.send("missing", b"")
        except BaseException as error:
            raised.append(error)

    producer = new(broker, max_block=60)
    thread = threading.Thread(target=send)
    thread.start()
    while not producer.health().ready:
        time.sleep(0.01)
    producer.close()
    thread.join(SOON)
    assert [type(error) for error in raised] == [ClosedError]


@pytest.mark.parametrize("end", [Producer.flush, Producer.close, partial(Producer.close, timeout=0)], ids=["flush", "close", "now"])
def test_after_ctrl_c_in_close_another_call_goes_on(broker: Broker, topic: str, end: Callable[[Producer], None]) -> None:
    producer = new(broker)
    producer.send(topic, b"", partition=0).result(SOON)
    with broker.faults.freeze() as frozen:
        delivery = producer.send(topic, b"", partition=0)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            producer.close()
        with pytest.raises(ClosedError):
            producer.send(topic, b"", partition=0)
        if is_patient := not isinstance(end, partial):
            frozen.clear()
        with nullcontext() if is_patient else pytest.raises(ClosedError):
            end(producer)
    producer.close()
    assert not producer.health().live
    if is_patient:
        assert delivery.result().offset == 1


def test_the_network_thread_goes_on_when_a_signal_handler_raises_while_it_is_looked_at(broker: Broker, topic: str) -> None:
    """If an exception is raised in ``Thread.is_alive()``, CPython 3.11 marks the thread as ended."""

    def interrupt(signal_number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        with new(broker, linger=0) as producer:
            for number in range(1_000):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.000_05 + number % 20 * 0.000_02)
                    producer.send(topic, b"%d" % number, partition=0).result(SOON)
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    with suppress(KeyboardInterrupt):
                        signal.setitimer(signal.ITIMER_REAL, 0)
            producer.send(topic, b"last", partition=0).result(SOON)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert interrupted > 100
    assert stored(broker, topic)[-1].value == b"last"


def test_a_signal_handler_that_raises_while_the_network_thread_starts(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        start(self)
        monkeypatch.undo()
        raise KeyboardInterrupt

    with new(broker, client_id="started-twice") as producer:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.send(topic, b"first", partition=0)
        producer.send(topic, b"second", partition=0).result(SOON)
        assert [thread.name for thread in threading.enumerate()].count("ottla-started-twice") == 1
    assert [record.value for record in stored(broker, topic)][-1] == b"second"


@pytest.mark.parametrize("timeout", [-1, "5", float("nan")], ids=repr)
def test_a_timeout_of_close_that_cannot_be(broker: Broker, topic: str, timeout: Any) -> None:
    producer = new(broker)
    with pytest.raises((TypeError, ValueError), match="timeout"):
        producer.close(timeout)
    assert producer.send(topic, b"", partition=0).result(SOON).offset == 0, "it is not closed"
    producer.close()


def test_records_that_are_not_written_when_the_producer_is_closed(broker: Broker, topic: str) -> None:
    producer = new(broker)
    producer.send(topic, b"", partition=0).result(SOON)
    with broker.faults.freeze():
        delivery = producer.send(topic, b"", partition=0)
        with pytest.raises(ClosedError, match="the producer was closed before the record was acknowledged"):
            producer.close(0.2)
        with pytest.raises(ClosedError):
            delivery.result()


def test_a_producer_that_is_not_closed(broker: Broker, topic: str) -> None:
    producer = new(broker)
    producer.send(topic, b"", partition=0).result(SOON)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del producer
    gc.collect()


def test_a_forked_child_cannot_use_the_producer(broker: Broker, topic: str) -> None:
    with new(broker, linger=60) as producer:
        producer.partitions_for(topic)
        producer.send(topic, b"of the parent", partition=0)
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            outcomes = []
            for call in (lambda: producer.send(topic, b"", partition=0), producer.flush, producer.close):
                try:
                    call()
                except ForkedError:
                    outcomes.append("forked")
                except BaseException as error:
                    outcomes.append(repr(error))
            os.write(writer, " ".join(outcomes).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 1_000) == b"forked forked forked"
    assert [record.value for record in stored(broker, topic)] == [b"of the parent"]


def test_health_names_records_that_wait(broker: Broker, topic: str) -> None:
    with new(broker) as producer:
        producer.send(topic, b"", partition=0).result(SOON)
        assert producer.health().healthy
        broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", times=None)
        delivery = producer.send(topic, b"", partition=0)
        while not (health := producer.health(stuck_after=0.1)).reasons:
            time.sleep(0.05)
        assert not health.healthy
        assert "NOT_ENOUGH_REPLICAS" in health.reasons[0]
        assert health.partitions[TopicPartition(topic, 0)].records == 1
        broker.faults.clear()
        delivery.result(SOON)
        assert producer.health(stuck_after=0.1).healthy


def test_the_metrics_are_those_of_the_table(broker: Broker, topic: str) -> None:
    with new(broker) as producer:
        producer.send(topic, b"value", partition=0).result(SOON)
        metrics = producer.metrics()
    assert {(name.group, name.name) for name in metrics} == {(group, name) for group, names in NAMES.items() for name in names}
    values = {name.name: value for name, value in metrics.items() if not name.tags}
    assert (values["record-send-total"], values["record-error-total"]) == (1.0, 0.0)


def test_logging_is_quiet(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with new(broker) as producer:
        producer.send(topic, b"value", partition=0).result(SOON)
    assert [record for record in caplog.records if record.name.startswith("ottla.") and "producer" in record.name] == []
