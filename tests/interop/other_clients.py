"""One interface for confluent-kafka, kafka-python and aiokafka, so that each test runs with all of them.

Owns how each client produces, consumes and joins a group. Must not know the tests. Invariant: a client has its default settings,
except those that a test needs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient, NewTopic

T = TypeVar("T")


class Message(NamedTuple):
    """A record in the same form for each client."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


class Member(Protocol):
    """A member of a group, with any client."""

    def poll(self, seconds: float) -> list[Message]: ...
    def assignment(self) -> set[int]: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


LIBRDKAFKA_PATIENT: dict[str, Any] = {"metadata.recovery.strategy": "none", "log_level": 0}
"""For librdkafka where the only broker ends and comes back. Its re-bootstrap (2.10 to 2.16) gives up a broker that is down for a
moment, and now and then leaves the partitions with no broker until the metadata is five minutes old."""

Row = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]
"""Partition, key, value, timestamp, headers."""


def create_topic(servers: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Create a topic, and wait until each of these brokers has its leaders: an answer may come before all of them know the topic,
    from a real Kafka, too. Raises the broker's error."""
    admin = AdminClient({"bootstrap.servers": servers})
    new = NewTopic(topic, partitions, 1, config={name.replace("_", "."): value for name, value in config.items()})
    admin.create_topics([new])[topic].result(60)
    deadline = time.monotonic() + 60
    for address in servers.split(","):
        one = AdminClient({"bootstrap.servers": address, "topic.metadata.refresh.sparse": "false"})
        while len(led := one.list_topics(topic, 60).topics[topic].partitions) < partitions or any(
            partition.leader < 0 for partition in led.values()
        ):
            assert time.monotonic() < deadline, f"broker {address} does not know topic {topic}"


def produce_confluent(servers: str, topic: str, rows: list[Row], **config: Any) -> None:
    """Produce with librdkafka; raises if any record was not acknowledged."""
    failed: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, **{k.replace("_", "."): v for k, v in config.items()}})
    for partition, key, value, timestamp, headers in rows:
        producer.produce(
            topic,
            value,
            key,
            partition,
            timestamp=timestamp,
            headers=list(headers),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed, failed[0]


def produce_kafka_python(servers: str, topic: str, rows: list[Row], **config: Any) -> None:
    """Produce with kafka-python."""
    producer = kafka.KafkaProducer(bootstrap_servers=servers, **config)
    sent = [
        producer.send(topic, value=value, key=key, partition=partition, timestamp_ms=timestamp, headers=list(headers))
        for partition, key, value, timestamp, headers in rows
    ]
    for future in sent:
        future.get(60)
    producer.close()


def produce_aiokafka(servers: str, topic: str, rows: list[Row], **config: Any) -> None:
    """Produce with aiokafka."""

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, **config)
        await producer.start()
        try:
            sent = [
                await producer.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp, headers=list(headers))
                for partition, key, value, timestamp, headers in rows
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(run())


PRODUCE: dict[str, Callable[..., None]] = {
    "confluent": produce_confluent,
    "kafka-python": produce_kafka_python,
    "aiokafka": produce_aiokafka,
}


class ConfluentMember:
    """confluent-kafka's consumer."""

    defaults: ClassVar[dict[str, Any]] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}

    def __init__(self, servers: str, topic: str, group: str, **config: Any) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **self.defaults,
                **{name.replace("_", "."): value for name, value in config.items()},
            }
        )
        self._consumer.subscribe([topic])

    def poll(self, seconds: float) -> list[Message]:
        messages = self._consumer.consume(500, seconds)
        for message in messages:
            assert message.error() is None, message.error()
        return [
            Message(one.partition(), one.offset(), one.key(), one.value(), one.timestamp()[1], tuple(one.headers() or ()))
            for one in messages
        ]

    def assignment(self) -> set[int]:
        return {one.partition for one in self._consumer.assignment()}

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
                raise

    def close(self) -> None:
        self._consumer.close()


class ConsumerGroupMember(ConfluentMember):
    """confluent-kafka's consumer with the consumer protocol (KIP-848), whose times the coordinator sets."""

    defaults: ClassVar[dict[str, Any]] = {"group.protocol": "consumer"}


class KafkaPythonMember:
    """kafka-python's consumer."""

    def __init__(self, servers: str, topic: str, group: str, **config: Any) -> None:
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
            # As a leader it assigns nothing of a topic that its metadata lacks, and looks again only when they are too old.
            metadata_max_age_ms=1000,
            **config,
        )
        self._consumer.partitions_for_topic(topic)  # or it may learn of the topic while it joins, and then stop for good

    def poll(self, seconds: float) -> list[Message]:
        found = self._consumer.poll(timeout_ms=int(seconds * 1000))
        return [
            Message(one.partition, one.offset, one.key, one.value, one.timestamp, tuple(one.headers))
            for records in found.values()
            for one in records
        ]

    def assignment(self) -> set[int]:
        return {one.partition for one in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close()


class AiokafkaMember:
    """aiokafka's consumer, on an event loop of its own in a separate thread, so that its heartbeats go on."""

    def __init__(self, servers: str, topic: str, group: str, **config: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=6000,
                heartbeat_interval_ms=300,
                **config,
            )
            await consumer.start()
            return consumer

        self._consumer = self._run(start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(90)

    def poll(self, seconds: float) -> list[Message]:
        found = self._run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [
            Message(one.partition, one.offset, one.key, one.value, one.timestamp, tuple(one.headers))
            for records in found.values()
            for one in records
        ]

    def assignment(self) -> set[int]:
        return {one.partition for one in self._consumer.assignment()}

    def commit(self) -> None:
        self._run(self._consumer.commit())

    def close(self) -> None:
        self._run(self._consumer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


MEMBER: dict[str, Callable[..., Member]] = {
    "confluent": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}


@contextmanager
def closing_all(*members: Member) -> Iterator[None]:
    """Close all members at the end of the ``with`` block."""
    try:
        yield
    finally:
        for member in members:
            member.close()


def read_all(
    servers: str, topic: str, peer: str, count: int, group: str | None = None, seconds: float = 60, **config: Any
) -> list[Message]:
    """``count`` records of a topic as a peer's consumer, alone in its group, reads them; sorted by partition and offset."""
    member = MEMBER[peer](servers, topic, group or f"read-{topic}-{peer}", **config)
    found: list[Message] = []
    with closing_all(member):
        end = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < end:
            found += member.poll(0.5)
    return sorted(found, key=lambda one: (one.partition, one.offset))


def poll_all(members: Sequence[Member], seconds: float) -> list[Message]:
    """Poll all members at the same time, as processes of their own would.

    kafka-python (3.0.12) throws away a join that is through between two of its polls, and begins another. Polled in turn with a
    member that joins inside its own poll, it may never arrive.
    """
    with ThreadPoolExecutor(len(members)) as pool:
        return [message for found in pool.map(lambda member: member.poll(seconds), members) for message in found]


def poll_until(members: Sequence[Member], done: Callable[[], bool], seconds: float = 90) -> list[Message]:
    """Poll all members until something holds; fails the test if it never does."""
    found: list[Message] = []
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds} s; assignments: {[sorted(one.assignment()) for one in members]}"
        found += poll_all(members, 0.2)
    return found
