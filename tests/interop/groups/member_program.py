"""One member of a group as a process, whichever Python client it is, that tells its life as Kafka's VerifiableConsumer does.

Owns how each client is subscribed, polled and told to commit. Must not know what is tested. Invariants: each line on stdout is
one JSON object, with ``name`` and ``timestamp`` (wall-clock milliseconds), in the order in which things happened; whatever was
consumed is told before it is committed. SIGTERM lets the member leave well; the process ends with 0 then.

    python member_program.py CLIENT SETTINGS     SETTINGS: a JSON object with the fields of ``Settings``
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiokafka
import aiokafka.coordinator.assignors.range as aiokafka_range
import aiokafka.coordinator.assignors.roundrobin as aiokafka_roundrobin
import aiokafka.coordinator.assignors.sticky.sticky_assignor as aiokafka_sticky
import confluent_kafka
import kafka
import kafka.coordinator.assignors.cooperative_sticky as kafka_cooperative
import kafka.coordinator.assignors.range as kafka_range
import kafka.coordinator.assignors.roundrobin as kafka_roundrobin
import kafka.coordinator.assignors.sticky.sticky_assignor as kafka_sticky

import ottla
from tests.interop.peers import LIBRDKAFKA_PATIENT

POLL = 0.2
"""Seconds of a poll without records."""


@dataclass(frozen=True)
class Settings:
    """What every client is told. Times in milliseconds."""

    servers: str
    topic: str
    group: str
    member: str
    instance: str | None
    protocol: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignor: str = "range"
    """By its name on the wire; of classic groups."""


KAFKA_PYTHON_ASSIGNORS = {
    "range": kafka_range.RangePartitionAssignor,
    "roundrobin": kafka_roundrobin.RoundRobinPartitionAssignor,
    "sticky": kafka_sticky.StickyPartitionAssignor,
    "cooperative-sticky": kafka_cooperative.CooperativeStickyAssignor,
}
AIOKAFKA_ASSIGNORS = {
    "range": aiokafka_range.RangePartitionAssignor,
    "roundrobin": aiokafka_roundrobin.RoundRobinPartitionAssignor,
    "sticky": aiokafka_sticky.StickyPartitionAssignor,
}


class Teller:
    """Prints the events of one member, and counts how often it was given each partition."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._given: dict[int, int] = {}

    def tell(self, name: str, **fields: object) -> None:
        print(json.dumps({"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}), flush=True)

    def assigned(self, partitions: Iterable[int]) -> None:
        given = sorted(partitions)
        for partition in given:
            self._given[partition] = self._given.get(partition, 0) + 1
        self.tell("partitions_assigned", partitions=[self._named(partition) for partition in given])

    def revoked(self, partitions: Iterable[int]) -> None:
        self.tell("partitions_revoked", partitions=[self._named(partition) for partition in sorted(partitions)])

    def consumed(self, offsets: Mapping[int, list[int]]) -> None:
        ranges = [
            {**self._named(partition), "count": len(set(found)), "minOffset": min(found), "maxOffset": max(found)}
            for partition, found in offsets.items()
        ]
        self.tell("records_consumed", count=sum(map(len, offsets.values())), partitions=ranges)

    def committed(self, offsets: Offsets, error: Exception | None) -> None:
        rows = [{**self._named(partition), "offset": offset, "note": note} for partition, (offset, note) in offsets.items()]
        why = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
        self.tell("offsets_committed", offsets=rows, success=error is None, **why)

    def note(self, partition: int) -> str:
        """What goes with a committed offset: who commits, and the how manyeth time it has the partition."""
        return f"{self._settings.member}/{self._given.get(partition, 0)}"

    def _named(self, partition: int) -> dict[str, object]:
        return {"topic": self._settings.topic, "partition": partition}


Offsets = Mapping[int, tuple[int, str]]
"""What is committed, by partition: the offset and its note."""


class Client(Protocol):
    """A client that has subscribed."""

    async def poll(self) -> dict[int, list[int]]:
        """The offsets that came, by partition."""
        ...

    async def commit(self, offsets: Offsets) -> None:
        """Commit, or raise what the client raises."""
        ...

    async def close(self) -> None: ...


class ConfluentClient:
    """confluent-kafka."""

    def __init__(self, settings: Settings, teller: Teller) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": settings.servers,
            "group.id": settings.group,
            "client.id": settings.member,
            "group.protocol": settings.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            **LIBRDKAFKA_PATIENT,
        }
        if settings.protocol == "classic":
            config["session.timeout.ms"] = settings.session_timeout_ms
            config["heartbeat.interval.ms"] = settings.heartbeat_interval_ms
            config["partition.assignment.strategy"] = settings.assignor
        if settings.instance:
            config["group.instance.id"] = settings.instance
        self._topic, self._teller = settings.topic, teller
        self._consumer = confluent_kafka.Consumer(config)
        self._consumer.subscribe(
            [settings.topic],
            on_assign=lambda _, found: teller.assigned(one.partition for one in found),
            on_revoke=lambda _, found: teller.revoked(one.partition for one in found),
        )

    async def poll(self) -> dict[int, list[int]]:
        offsets: dict[int, list[int]] = {}
        for message in self._consumer.consume(500, POLL):
            if message.error() is not None:
                self._teller.tell("error", error=str(message.error()))
            else:
                offsets.setdefault(message.partition(), []).append(message.offset())
        return offsets

    async def commit(self, offsets: Offsets) -> None:
        wanted = [
            confluent_kafka.TopicPartition(self._topic, partition, offset, note) for partition, (offset, note) in offsets.items()
        ]
        for one in self._consumer.commit(offsets=wanted, asynchronous=False):
            if one.error is not None:
                raise confluent_kafka.KafkaException(one.error)

    async def close(self) -> None:
        self._consumer.close()


class _KafkaPythonListener(kafka.ConsumerRebalanceListener):
    def __init__(self, teller: Teller) -> None:
        self._teller = teller

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._teller.assigned(one.partition for one in assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._teller.revoked(one.partition for one in revoked)


class KafkaPythonClient:
    """kafka-python."""

    def __init__(self, settings: Settings, teller: Teller) -> None:
        self._topic, self._teller = settings.topic, teller
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=settings.servers,
            group_id=settings.group,
            client_id=settings.member,
            group_instance_id=settings.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            reconnect_backoff_max_ms=500,
            partition_assignment_strategy=[KAFKA_PYTHON_ASSIGNORS[settings.assignor]],
            # As a leader it assigns nothing of a topic that its metadata lacks, and looks again only when they are too old.
            metadata_max_age_ms=1000,
        )
        # It loses its way, on a real Kafka too, if it learns of the topic and a poll ends while it joins: so it learns first.
        self._consumer.partitions_for_topic(settings.topic)
        self._consumer.subscribe([settings.topic], listener=_KafkaPythonListener(teller))

    async def poll(self) -> dict[int, list[int]]:
        found = self._consumer.poll(timeout_ms=int(POLL * 5 * 1000))
        return {tp.partition: [record.offset for record in records] for tp, records in found.items()}

    async def commit(self, offsets: Offsets) -> None:
        self._consumer.commit(
            {
                kafka.TopicPartition(self._topic, partition): kafka.OffsetAndMetadata(offset, note, -1)
                for partition, (offset, note) in offsets.items()
            },
            timeout_ms=10_000,
        )

    async def close(self) -> None:
        self._consumer.close()


class _AiokafkaListener(aiokafka.ConsumerRebalanceListener):
    def __init__(self, teller: Teller) -> None:
        self._teller = teller

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._teller.assigned(one.partition for one in assigned)

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._teller.revoked(one.partition for one in revoked)


class AiokafkaClient:
    """aiokafka."""

    def __init__(self, settings: Settings, teller: Teller) -> None:
        self._topic, self._teller = settings.topic, teller
        self._started = False
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=settings.servers,
            group_id=settings.group,
            client_id=settings.member,
            group_instance_id=settings.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            partition_assignment_strategy=[AIOKAFKA_ASSIGNORS[settings.assignor]],
        )
        self._consumer.subscribe([settings.topic], listener=_AiokafkaListener(teller))

    async def poll(self) -> dict[int, list[int]]:
        if not self._started:
            await self._consumer.start()
            self._started = True
        found = await self._consumer.getmany(timeout_ms=int(POLL * 1000))
        return {tp.partition: [record.offset for record in records] for tp, records in found.items()}

    async def commit(self, offsets: Offsets) -> None:
        await self._consumer.commit(
            {aiokafka.TopicPartition(self._topic, partition): offset_and_note for partition, offset_and_note in offsets.items()}
        )

    async def close(self) -> None:
        await self._consumer.stop()


def ottla_classic(settings: Settings) -> dict[str, object]:
    """What Ottla's consumer is told in a classic group alone."""
    return {
        "session_timeout_ms": settings.session_timeout_ms,
        "heartbeat_interval_ms": settings.heartbeat_interval_ms,
        "partition_assignment_strategy": [settings.assignor],
    }


class OttlaClient:
    """Ottla's own consumer."""

    def __init__(self, settings: Settings, teller: Teller) -> None:
        self._topic, self._teller = settings.topic, teller
        self._consumer = ottla.Consumer(
            bootstrap_servers=settings.servers,
            group_id=settings.group,
            client_id=settings.member,
            group_protocol=settings.protocol,
            **({"group_instance_id": settings.instance} if settings.instance else {}),
            **(ottla_classic(settings) if settings.protocol == "classic" else {}),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self._consumer.subscribe(
            [settings.topic],
            on_assign=lambda _, found: teller.assigned(one.partition for one in found),
            on_revoke=lambda _, found: teller.revoked(one.partition for one in found),
        )

    async def poll(self) -> dict[int, list[int]]:
        offsets: dict[int, list[int]] = {}
        for record in self._consumer.poll(POLL):
            offsets.setdefault(record.partition, []).append(record.offset)
        return offsets

    async def commit(self, offsets: Offsets) -> None:
        wanted = {
            ottla.TopicPartition(self._topic, partition): ottla.OffsetAndMetadata(offset, note)
            for partition, (offset, note) in offsets.items()
        }
        self._consumer.commit(wanted, timeout=10)

    async def close(self) -> None:
        self._consumer.close()


CLIENTS: Mapping[str, Any] = {
    "confluent": ConfluentClient,
    "kafka-python": KafkaPythonClient,
    "aiokafka": AiokafkaClient,
    "ottla": OttlaClient,
}


async def live(client: Client, teller: Teller, stop: asyncio.Event) -> None:
    """Poll and commit what came, until told to stop. What a client raises is told, and life goes on."""
    while not stop.is_set():
        try:
            offsets = await client.poll()
        except Exception as error:
            teller.tell("error", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(POLL)
            continue
        await asyncio.sleep(0)
        if not offsets:
            continue
        teller.consumed(offsets)
        wanted = {partition: (found[-1] + 1, teller.note(partition)) for partition, found in offsets.items()}
        failed = None
        try:
            await client.commit(wanted)
        except Exception as error:
            failed = error
        teller.committed(wanted, failed)
    await client.close()
    teller.tell("shutdown_complete")


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = Settings(**json.loads(sys.argv[2]))
    teller = Teller(settings)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = CLIENTS[sys.argv[1]](settings, teller)
    teller.tell("startup_complete")
    await live(client, teller, stop)


if __name__ == "__main__":
    asyncio.run(main())
