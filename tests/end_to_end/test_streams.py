"""``Consumer.streams()`` with real threads: who gets which records, what is committed, and how it ends, whatever happens."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla import Admin, Consumer, Record, Stream, TopicPartition, stop_on_signals
from ottla.errors import (
    ClosedError,
    ConcurrentAccessError,
    ConfigError,
    ConsumerTimeoutError,
    ForkedError,
    IllegalStateError,
    OttlaError,
    RecordDeserializationError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from tests.end_to_end.interruptions import Interruptions

PATIENCE = 60.0
"""Seconds: a limit for everything, on a busy machine."""

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer", "auto"])

Topic = Callable[..., str]


def values(count: int) -> list[str]:
    """Records for ``topic()``, with different keys, so that they go to all partitions."""
    return [f"{number}:{number}" for number in range(count)]


def reading(served: str, group: str, **settings: Any) -> Consumer:
    return Consumer(bootstrap_servers=served, group_id=group, **{"auto_offset_reset": "earliest", **settings})


class Reader(threading.Thread):
    """A thread that iterates over a stream and does ``each`` with its records."""

    def __init__(self, stream: Stream, each: Callable[[Record], object] = lambda _: None) -> None:
        super().__init__(daemon=True)
        self.seen: list[Record] = []
        self.error: BaseException | None = None
        self._stream, self._each = stream, each
        self.start()

    def run(self) -> None:
        try:
            for record in self._stream:
                self.seen.append(record)
                self._each(record)
        except BaseException as error:
            self.error = error

    def ended(self) -> bool:
        self.join(PATIENCE)
        return not self.is_alive()


def until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def send(served: str, topic: str, *records: str) -> None:
    producer = Producer({"bootstrap.servers": served})
    for record in records:
        producer.produce(topic, record, partition=0)
    assert producer.flush(PATIENCE) == 0


def seen_by(*readers: Reader) -> Counter[tuple[int, int]]:
    return Counter((record.partition, record.offset) for reader in readers for record in reader.seen)


def offsets(served: str, group: str) -> dict[TopicPartition, int]:
    with Admin(bootstrap_servers=served) as admin:
        return {tp: position.offset for tp, position in admin.group_offsets(group).items()}


@contextmanager
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    until(lambda: not [thread for thread in set(threading.enumerate()) - before if "ottla" in thread.name], "a thread is left")


# -- who gets which records -----------------------------------------------------------------------------------------------


@PROTOCOLS
def test_each_stream_gets_the_records_of_its_partitions_and_close_commits_them(served: str, topic: Topic, protocol: str) -> None:
    name = topic(5, *values(2_000))
    called: list[tuple[str, list[TopicPartition]]] = []

    def listener(what: str) -> Any:
        return lambda _, partitions: called.append((f"{what} in {threading.current_thread().name}", partitions))

    with no_threads_left():
        with reading(served, f"g-{name}", group_protocol=protocol, client_id="mine") as consumer:
            streams = consumer.streams({name: 2}, on_assign=listener("assign"), on_revoke=listener("revoke"))
            readers = [Reader(stream) for stream in streams[name]]
            until(lambda: len(seen_by(*readers)) == 2_000)
            assert [{record.partition for record in reader.seen} for reader in readers] == [{0, 1, 2}, {3, 4}]
            assert {f"<Stream {name} {number}>" for number in range(2)} == set(map(repr, streams[name]))
        assert all(reader.ended() and reader.error is None for reader in readers)
    assert set(seen_by(*readers).values()) == {1}
    for reader in readers:
        for partition in {record.partition for record in reader.seen}:
            assert (mine := [record.offset for record in reader.seen if record.partition == partition]) == [*range(len(mine))]
    everything = [TopicPartition(name, number) for number in range(5)]
    assert called == [("assign in ottla-streams-mine", everything), ("revoke in ottla-streams-mine", everything)]
    assert sum(offsets(served, f"g-{name}").values()) == 2_000


def test_the_streams_of_a_pattern_share_all_topics_that_match_also_later_ones(served: str, topic: Topic) -> None:
    first = topic(1, *values(10))
    prefix = first.rstrip("0123456789")
    with reading(served, f"g-{first}", metadata_max_age=0.5) as consumer:
        streams = consumer.streams(pattern=f"{prefix}.*", n=2)
        readers = [Reader(stream) for stream in streams]
        until(lambda: any(record.topic == first for reader in readers for record in reader.seen))
        second = topic(1, *values(10))
        until(lambda: any(record.topic == second for reader in readers for record in reader.seen))


def test_members_with_streams_share_a_topic_and_repeat_nothing(served: str, topic: Topic) -> None:
    name = topic(6)
    producer = Producer({"bootstrap.servers": served})
    with reading(served, f"g-{name}") as first, reading(served, f"g-{name}") as second:
        readers = [Reader(stream, lambda _: time.sleep(0.001)) for stream in first.streams({name: 3})[name]]
        for number in range(3_000):
            producer.produce(name, str(number), partition=number % 6)
            if number == 1_000:
                producer.flush()
                readers += [Reader(stream, lambda _: time.sleep(0.001)) for stream in second.streams({name: 2})[name]]
        producer.flush()
        until(lambda: len(seen_by(*readers)) == 3_000)
        assert len(second.assignment()) == len(first.assignment()) == 3
    assert set(seen_by(*readers).values()) == {1}


def test_a_stream_that_is_not_read_does_not_stop_the_others(served: str, topic: Topic) -> None:
    name = topic(2)
    producer = Producer({"bootstrap.servers": served})
    for number in range(20_000):
        producer.produce(name, b"x" * 1_000, partition=number % 2)
        if number % 5_000 == 0:
            producer.flush()
    producer.flush()
    with reading(served, f"g-{name}", max_partition_fetch_bytes=500_000, max_poll_records=100) as consumer:
        unread, read = consumer.streams({name: 2})[name]
        reader = Reader(read)
        until(lambda: len(reader.seen) == 10_000)
        assert consumer.paused() == {TopicPartition(name, 0)}
        late = Reader(unread)
        until(lambda: len(late.seen) == 10_000)
        assert seen_by(reader, late).most_common(1)[0][1] == 1


def test_ten_thousand_streams(served: str, topic: Topic) -> None:
    name = topic(3, *values(30))
    with reading(served, f"g-{name}") as consumer:
        streams = consumer.streams({name: 10_000})[name]
        readers = [Reader(stream) for stream in streams[:3]]
        until(lambda: len(seen_by(*readers)) == 30)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert [next(stream, None) for stream in streams[3:]] == [None] * 9_997


# -- commits --------------------------------------------------------------------------------------------------------------


def test_commit_in_a_loop_covers_the_current_record_of_its_thread_and_of_no_other(served: str, topic: Topic) -> None:
    name = topic(2)
    producer = Producer({"bootstrap.servers": served})
    for number in range(20):
        producer.produce(name, str(number), partition=number % 2)
    producer.flush()
    go_on, waits = threading.Event(), threading.Event()

    def wait(record: Record) -> None:
        if record.offset == 4:
            waits.set()
            assert go_on.wait(PATIENCE)

    with reading(served, f"g-{name}", enable_auto_commit=False) as consumer:
        mine, theirs = consumer.streams({name: 2})[name]
        other = Reader(theirs, wait)
        assert waits.wait(PATIENCE)
        for record in mine:
            if record.offset == 6:
                break
        committed = {tp.partition: position.offset for tp, position in consumer.commit().items()}
        assert committed == {0: 7, 1: 4}
        assert consumer.position(TopicPartition(name, 0)) == 7
        assert consumer.position(TopicPartition(name, 1)) == 5
        asked: list[Any] = []
        consumer.commit_async(callback=lambda offsets, error: asked.append((offsets, error)))
        until(lambda: asked)
        assert asked[0][0][TopicPartition(name, 1)].offset == 4
        go_on.set()
        until(lambda: len(other.seen) == 10)
    assert offsets(served, f"g-{name}") == {TopicPartition(name, 0): 7, TopicPartition(name, 1): 4}


class Oops(Exception):
    pass


@pytest.mark.parametrize(("error", "committed"), [(None, 5), (Oops, 4), (KeyboardInterrupt, 4)])
def test_leaving_a_loop_in_the_with_block(served: str, topic: Topic, error: type[BaseException] | None, committed: int) -> None:
    """After ``break`` the last record counts as processed, after an exception it does not."""
    name = topic(1, *values(10))
    try:
        with reading(served, f"g-{name}") as consumer:
            (stream,) = consumer.streams({name: 1})[name]
            for record in stream:
                if record.offset == 4:
                    if error is not None:
                        raise error
                    break
    except (Oops, KeyboardInterrupt):
        pass
    assert offsets(served, f"g-{name}") == {TopicPartition(name, 0): committed}


def test_the_record_of_a_thread_that_has_failed_is_delivered_again(served: str, topic: Topic) -> None:
    name = topic(1, *values(10))

    def fail(record: Record) -> None:
        if record.offset == 3:
            raise Oops

    with reading(served, f"g-{name}") as consumer:
        reader = Reader(consumer.streams({name: 1})[name][0], fail)
        assert reader.ended()
        consumer.commit()
    assert isinstance(reader.error, Oops)
    assert offsets(served, f"g-{name}") == {TopicPartition(name, 0): 3}


def test_an_automatic_commit_goes_on_while_threads_process(served: str, topic: Topic) -> None:
    name = topic(1, *values(10))
    waits, go_on = threading.Event(), threading.Event()

    def wait(record: Record) -> None:
        if record.offset == 5:
            waits.set()
            assert go_on.wait(PATIENCE)

    with reading(served, f"g-{name}", auto_commit_interval=0.05) as consumer:
        reader = Reader(consumer.streams({name: 1})[name][0], wait)
        assert waits.wait(PATIENCE)
        until(lambda: offsets(served, f"g-{name}") == {TopicPartition(name, 0): 5})
        go_on.set()
        until(lambda: len(reader.seen) == 10)


# -- the end --------------------------------------------------------------------------------------------------------------


def test_close_ends_iterators_that_wait_and_those_that_come_later(served: str, topic: Topic) -> None:
    name = topic(2, *values(1))
    consumer = reading(served, f"g-{name}")
    streams = consumer.streams({name: 3})[name]
    readers = [Reader(stream) for stream in streams[:2]]
    until(lambda: sum(len(reader.seen) for reader in readers) == 1)
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 2
    assert all(reader.ended() and reader.error is None for reader in readers)
    assert list(streams[2]) == []
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.commit()
    with pytest.raises(ClosedError):
        consumer.streams({name: 1})


def test_queued_records_are_dropped_by_close(served: str, topic: Topic) -> None:
    name = topic(1, *values(100))
    seen: list[int] = []
    with reading(served, f"g-{name}", max_poll_records=10) as consumer:

        def close(record: Record) -> None:
            seen.append(record.offset)
            if record.offset == 15:
                consumer.close()

        reader = Reader(consumer.streams({name: 1})[name][0], close)
        assert reader.ended()
    assert (reader.error, seen) == (None, [*range(16)])
    assert offsets(served, f"g-{name}") == {TopicPartition(name, 0): 16}


def test_two_threads_close_at_once(served: str, topic: Topic) -> None:
    name = topic(1, *values(5))
    consumer = reading(served, f"g-{name}")
    reader = Reader(consumer.streams({name: 1})[name][0])
    until(lambda: len(reader.seen) == 5)
    closing = [threading.Thread(target=consumer.close) for _ in range(4)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert reader.ended()
    assert offsets(served, f"g-{name}") == {TopicPartition(name, 0): 5}


def test_a_listener_closes_the_consumer(served: str, topic: Topic) -> None:
    name = topic(1, *values(5))
    with no_threads_left():
        consumer = reading(served, f"g-{name}")
        (stream,) = consumer.streams({name: 1}, on_assign=lambda consumer, _: consumer.close())[name]
        assert list(stream) == []
        until(lambda: consumer.health().reasons == ("the consumer is closed",))


def test_wakeup_ends_each_stream_once(served: str, topic: Topic) -> None:
    name = topic(2, *values(20))
    with reading(served, f"g-{name}") as consumer:
        streams = consumer.streams({name: 2})[name]
        readers = [Reader(stream) for stream in streams]
        until(lambda: len(seen_by(*readers)) == 20)
        consumer.wakeup()
        assert all(reader.ended() and isinstance(reader.error, WakeupError) for reader in readers)
        again = [Reader(stream) for stream in streams]
        send(served, name, "more")
        until(lambda: sum(len(reader.seen) for reader in again) == 1)
        with stop_on_signals(consumer):
            os.kill(os.getpid(), 2)
            assert all(reader.ended() and isinstance(reader.error, WakeupError) for reader in again)


def test_a_stream_that_has_no_record_for_consumer_timeout_raises_and_goes_on(served: str, topic: Topic) -> None:
    name = topic(1, *values(3))
    with reading(served, f"g-{name}", consumer_timeout_ms=300) as consumer:
        (stream,) = consumer.streams({name: 1})[name]
        seen: list[Record] = []
        deadline = time.monotonic() + PATIENCE
        while len(seen) < 3:
            try:
                seen.append(next(stream))
            except ConsumerTimeoutError:  # the group takes its time
                assert time.monotonic() < deadline
        began = time.monotonic()
        with pytest.raises(ConsumerTimeoutError, match=f"the stream {name} 0 had no record for 300 ms"):
            next(stream)
        assert 0.3 <= time.monotonic() - began < 5
        send(served, name, "more")
        assert next(stream).value == b"more"
    assert next(stream, None) is None


def test_a_timeout_of_zero_does_not_wait(served: str, topic: Topic) -> None:
    name = topic(1)
    with reading(served, f"g-{name}", consumer_timeout_ms=0) as consumer:
        (stream,) = consumer.streams({name: 1})[name]
        with pytest.raises(ConsumerTimeoutError):
            next(stream)


def test_consumer_and_streams_are_garbage_collected(served: str, topic: Topic) -> None:
    name = topic(1, *values(3))
    with no_threads_left(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        consumer = reading(served, f"g-{name}")
        (stream,) = consumer.streams({name: 1}, on_assign=lambda *_: None)[name]
        this = weakref.ref(consumer)
        del consumer
        gc.collect()
        assert [next(stream).offset for _ in range(3)] == [0, 1, 2], "the stream keeps its consumer"
        del stream
        gc.collect()
        assert this() is None
    assert ["was not closed" in str(warning.message) for warning in caught if warning.category is ResourceWarning] == [True]


def test_a_forked_child_gets_an_error(served: str, topic: Topic) -> None:
    name = topic(1, *values(3))
    with reading(served, f"g-{name}") as consumer:
        (stream,) = consumer.streams({name: 1})[name]
        assert [next(stream).offset for _ in range(3)] == [0, 1, 2]
        child = os.fork()
        if not child:
            code = 1
            try:
                for call in (lambda: next(stream), consumer.commit, consumer.close, lambda: consumer.streams({name: 1})):
                    with pytest.raises(ForkedError):
                        call()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    assert offsets(served, f"g-{name}") == {TopicPartition(name, 0): 3}


# -- errors ---------------------------------------------------------------------------------------------------------------


def test_a_second_thread_gets_an_error_until_the_first_has_ended(served: str, topic: Topic) -> None:
    name = topic(1, *values(5))
    with reading(served, f"g-{name}") as consumer:
        (stream,) = consumer.streams({name: 1})[name]
        reader = Reader(stream, lambda _: time.sleep(0.001))
        until(lambda: reader.seen)
        with pytest.raises(ConcurrentAccessError, match=f"MainThread iterates over the stream {name} 0, as {reader.name} does"):
            next(stream)
        until(lambda: len(reader.seen) == 5)
        consumer.wakeup()
        assert reader.ended()
        send(served, name, "more")
        assert next(stream).offset == 5


def test_everything_else_that_reads_is_refused(served: str, topic: Topic) -> None:
    name = topic(1)
    with reading(served, f"g-{name}") as consumer:
        consumer.streams({name: 1})
        for call in (
            consumer.poll,
            lambda: next(iter(consumer)),
            lambda: consumer.subscribe([name]),
            lambda: consumer.assign([TopicPartition(name, 0)]),
            consumer.unsubscribe,
            lambda: consumer.streams({name: 1}),
            lambda: consumer.processing(limit=1),
        ):
            with pytest.raises(IllegalStateError, match="this consumer has streams"):
                call()
    with reading(served, f"g-{name}") as consumer:
        consumer.subscribe([name])
        with pytest.raises(IllegalStateError, match="streams\\(\\) after subscribe"):
            consumer.streams({name: 1})
        consumer.poll(0)
    with Consumer(bootstrap_servers=served) as consumer, pytest.raises(IllegalStateError, match="streams\\(\\) needs a group"):
        consumer.streams({name: 1})


def test_after_a_refused_pattern_the_next_call_works(served: str, topic: Topic) -> None:
    name = topic(1, *values(1))
    with reading(served, f"g-{name}", group_protocol="classic") as consumer:
        with pytest.raises(ConfigError, match="not a regular expression"):
            consumer.streams(pattern="(")
        (stream,) = consumer.streams({name: 1})[name]
        assert next(stream).offset == 0


def test_a_topic_that_does_not_exist(served: str, topic: Topic) -> None:
    name = topic(1)
    with reading(served, f"g-{name}", allow_auto_create_topics=False) as consumer:
        (stream,) = consumer.streams({f"no-{name}": 1})[f"no-{name}"]
        for _ in range(2):
            with pytest.raises(UnknownTopicOrPartitionError):
                next(stream)


def test_an_exception_of_a_listener_reaches_all_streams_and_the_rebalance_goes_on(served: str, topic: Topic) -> None:
    name = topic(2, *values(10))

    def fail(*_: object) -> None:
        raise Oops("mine")

    with reading(served, f"g-{name}") as consumer:
        readers = [Reader(stream) for stream in consumer.streams({name: 3}, on_assign=fail)[name]]
        assert readers[2].ended(), "this one has no partition"
        assert isinstance(readers[2].error, OttlaError)
        assert isinstance(readers[2].error.cause, Oops)
        assert consumer.assignment() == {TopicPartition(name, 0), TopicPartition(name, 1)}


def test_a_listener_that_exits_ends_all_streams(served: str, topic: Topic) -> None:
    name = topic(1)
    with reading(served, f"g-{name}") as consumer:
        (stream,) = consumer.streams({name: 1}, on_assign=lambda *_: exit(3))[name]
        for _ in range(2):
            with pytest.raises(OttlaError, match=r"the consumer has failed: SystemExit\(3\)"):
                next(stream)


def test_when_the_network_thread_ends_every_stream_raises(served: str, topic: Topic) -> None:
    name = topic(1)
    consumer = reading(served, f"g-{name}")
    (stream,) = consumer.streams({name: 1})[name]
    reader = Reader(stream)
    time.sleep(0.1)
    network = consumer._network
    assert network is not None
    network.close(5)
    assert reader.ended()
    assert isinstance(reader.error, IllegalStateError)
    assert "network thread" in str(reader.error)
    with pytest.raises(IllegalStateError, match="network thread"):
        consumer.commit()
    consumer.close()


def test_a_deserializer_runs_in_the_thread_that_reads_the_value(served: str, topic: Topic) -> None:
    name = topic(1, "a:1", "b:x", "c:3")
    threads: set[str] = set()

    def number(raw: bytes) -> int:
        threads.add(threading.current_thread().name)
        return int(raw)

    with reading(served, f"g-{name}", value_deserializer=number) as consumer:
        (stream,) = consumer.streams({name: 1})[name]
        assert next(stream).value == 1
        broken = next(stream)
        with pytest.raises(RecordDeserializationError, match="offset 1"):
            broken.value  # noqa: B018 - a property
        assert next(stream).value == 3
    assert threads == {"MainThread"}


# -- other calls ----------------------------------------------------------------------------------------------------------


def test_a_listener_may_seek_and_commit(served: str, topic: Topic) -> None:
    name = topic(1, *values(10))
    tp = TopicPartition(name, 0)

    def start(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.seek(tp, 6)
        consumer.commit({tp: 6})

    with reading(served, f"g-{name}") as consumer:
        (stream,) = consumer.streams({name: 1}, on_assign=start)[name]
        assert [next(stream).offset for _ in range(4)] == [6, 7, 8, 9]
        assert consumer.committed(tp)[tp].offset == 6


def test_seek_drops_what_waits_in_the_stream(served: str, topic: Topic) -> None:
    name = topic(1, *values(50))
    tp = TopicPartition(name, 0)
    with reading(served, f"g-{name}", max_poll_records=5) as consumer:
        (stream,) = consumer.streams({name: 1})[name]
        assert [next(stream).offset for _ in range(3)] == [0, 1, 2]
        consumer.seek(tp, 40)
        assert [next(stream).offset for _ in range(3)] == [40, 41, 42]
        consumer.seek_to_beginning(tp)
        assert next(stream).offset == 0
        assert consumer.lag(tp) == 49


def test_pause_holds_the_records_back_and_resume_continues(served: str, topic: Topic) -> None:
    name = topic(1, *values(50))
    tp = TopicPartition(name, 0)
    with reading(served, f"g-{name}", max_poll_records=5, consumer_timeout_ms=500) as consumer:
        (stream,) = consumer.streams({name: 1})[name]
        until(lambda: consumer.assignment())
        assert [next(stream).offset for _ in range(7)] == [*range(7)]
        consumer.pause(tp)
        with pytest.raises(ConsumerTimeoutError):
            next(stream)
        assert consumer.paused() == {tp}
        consumer.resume(tp)
        assert [next(stream).offset for _ in range(43)] == [*range(7, 50)]


def test_queries_of_any_thread_work_while_streams_are_read(served: str, topic: Topic) -> None:
    name = topic(2, *values(100))
    tps = [TopicPartition(name, 0), TopicPartition(name, 1)]
    with reading(served, f"g-{name}") as consumer:
        readers = [Reader(stream) for stream in consumer.streams({name: 2})[name]]
        until(lambda: len(seen_by(*readers)) == 100)
        answers: list[Any] = []

        def ask() -> None:
            for _ in range(20):
                answers.append(sum(consumer.end_offsets(tps).values()))
                answers.append(sum(consumer.position(tp) for tp in tps))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert answers == [100] * 160
        assert consumer.subscription() == {name}
        assert consumer.health().live
        assert len(consumer.partitions_for(name)) == 2


# -- Ctrl-C ---------------------------------------------------------------------------------------------------------------


def test_ctrl_c_at_any_moment_neither_loses_nor_repeats_a_record(served: str, topic: Topic) -> None:
    """The main thread iterates, and goes on after each interruption."""
    name = topic(1, *values(12))
    attempts = iter(range(10_000))

    def read(interruptions: Interruptions) -> list[int]:
        seen: list[int] = []
        deadline = time.monotonic() + PATIENCE
        with reading(served, f"g-{name}-{next(attempts)}", max_poll_records=4, fetch_max_wait=0.05) as consumer:
            (stream,) = consumer.streams({name: 1})[name]
            with interruptions:
                while len(seen) < 12 and time.monotonic() < deadline:
                    try:
                        for record in stream:
                            seen.append(record.offset)
                            if len(seen) == 12:
                                break
                    except KeyboardInterrupt:
                        pass
        return seen

    first = Interruptions()
    assert read(first) == [*range(12)]
    points = [point for point in first.passed if "streams" in point.file or "stream" in point.function]
    assert len(points) >= 15
    for point in points:
        for hit in {1, min(2, first.passed[point]), min(3, first.passed[point])}:
            assert read(Interruptions(point, hit)) == [*range(12)], f"{point}, hit {hit}"
