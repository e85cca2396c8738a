"""A process with one member of a group, for each Python client, in the loop of ``member_lifecycle.py``.

Owns each client's calls for subscribe, poll and commit. Must not know the tests. Invariant: on SIGTERM the member leaves its group,
and the process exits with 0.

    python member_program.py CLIENT SETTINGS     SETTINGS: a JSON object with the fields of ``Settings``
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
from ottla.errors import OttlaError
from tests.interop.groups.member_lifecycle import POLL, Client, Teller, live, log_to_stderr
from tests.interop.other_clients import LIBRDKAFKA_PATIENT

Offsets = Mapping[int, tuple[int, str]]
"""What is committed, by partition: the offset and its note."""


@dataclass(frozen=True)
class Settings:
    """The settings of every client. Times in milliseconds."""

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


class ConfluentClient:
    """confluent-kafka."""

    failures = Exception

    def __init__(self, settings: Settings, teller: Teller[int]) -> None:
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
    def __init__(self, teller: Teller[int]) -> None:
        self._teller = teller

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._teller.assigned(one.partition for one in assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._teller.revoked(one.partition for one in revoked)


class KafkaPythonClient:
    """kafka-python."""

    failures = Exception

    def __init__(self, settings: Settings, teller: Teller[int]) -> None:
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
    def __init__(self, teller: Teller[int]) -> None:
        self._teller = teller

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._teller.assigned(one.partition for one in assigned)

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._teller.revoked(one.partition for one in revoked)


class AiokafkaClient:
    """aiokafka."""

    failures = Exception

    def __init__(self, settings: Settings, teller: Teller[int]) -> None:
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


def ottla_classic(settings: Settings) -> dict[str, Any]:
    """Settings of Ottla's consumer in classic groups only."""
    return {
        "session_timeout_ms": settings.session_timeout_ms,
        "heartbeat_interval_ms": settings.heartbeat_interval_ms,
        "partition_assignment_strategy": [settings.assignor],
    }


class OttlaClient:
    """Ottla's consumer: an undocumented error ends the member."""

    failures = OttlaError

    def __init__(self, settings: Settings, teller: Teller[int]) -> None:
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


async def main() -> None:
    log_to_stderr()
    settings = Settings(**json.loads(sys.argv[2]))
    teller: Teller[int] = Teller(settings.member)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client: Client[int] = CLIENTS[sys.argv[1]](settings, teller)
    teller.tell("startup_complete")
    await live(client, teller, stop.is_set)


if __name__ == "__main__":
    asyncio.run(main())
