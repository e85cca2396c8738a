"""A process with one member of a group that reads several topics: Ottla's consumer in the loop of ``groups/member_lifecycle.py``.

Owns the settings of the consumer and the names of partitions. Must not know what happens to the cluster. Invariant: on SIGTERM the
member leaves its group, and the process exits with 0.

The output names an owned partition ``topic-partition``, and one that was read ``topic.incarnation-partition``. The incarnation is
in the value of each record, because a recreated topic has the same name and the same offsets.

    python member_program.py SETTINGS     SETTINGS: a JSON object with the fields of ``Settings``
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import ottla
from ottla import OffsetAndMetadata, TopicPartition
from ottla.errors import OttlaError
from tests.interop.cluster.invariants import incarnation_of, plain
from tests.interop.groups.member_lifecycle import POLL, Teller, live, log_to_stderr


@dataclass(frozen=True)
class Settings:
    """The argument of a member. Times in milliseconds."""

    servers: str
    topics: list[str]
    group: str
    member: str
    protocol: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignor: str
    """By its name on the wire; of classic groups."""


class ClusterTeller(Teller[str]):
    """Prints commits with the incarnation of the topic; there is one commit per partition, for the latest incarnation."""

    def due(self, offsets: Mapping[str, list[int]]) -> dict[str, tuple[int, str]]:
        last = {plain(key): key for key in offsets}
        return super().due({key: offsets[key] for key in last.values()})

    def note(self, partition: str) -> str:
        return f"{super().note(plain(partition))}/{incarnation_of(partition)}"


class ClusterClient:
    """Ottla's own consumer of several topics."""

    failures = OttlaError

    def __init__(self, settings: Settings, teller: ClusterTeller) -> None:
        classic = {
            "session_timeout_ms": settings.session_timeout_ms,
            "heartbeat_interval_ms": settings.heartbeat_interval_ms,
            "partition_assignment_strategy": [settings.assignor],
        }
        self.consumer = ottla.Consumer(
            bootstrap_servers=settings.servers,
            group_id=settings.group,
            client_id=settings.member,
            group_protocol=settings.protocol,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=2_000,
            **(classic if settings.protocol == "classic" else {}),
        )
        self.consumer.subscribe(
            settings.topics,
            on_assign=lambda _, found: teller.assigned(map(str, found)),
            on_revoke=lambda _, found: teller.revoked(map(str, found)),
        )

    async def poll(self) -> dict[str, list[int]]:
        offsets: dict[str, list[int]] = {}
        for record in self.consumer.poll(POLL):
            incarnation = record.value.decode().split(":")[0]
            offsets.setdefault(f"{record.topic}.{incarnation}-{record.partition}", []).append(record.offset)
        return offsets

    async def commit(self, offsets: Mapping[str, tuple[int, str]]) -> None:
        wanted = {_partition(key): OffsetAndMetadata(offset, note) for key, (offset, note) in offsets.items()}
        self.consumer.commit(wanted, timeout=10)

    async def close(self) -> None:
        self.consumer.close()


def _partition(key: str) -> TopicPartition:
    topic, partition = plain(key).rsplit("-", 1)
    return TopicPartition(topic, int(partition))


async def main() -> None:
    log_to_stderr()
    settings = Settings(**json.loads(sys.argv[1]))
    teller = ClusterTeller(settings.member)
    client = ClusterClient(settings, teller)
    teller.tell("startup_complete")
    with ottla.stop_on_signals(client.consumer) as stopped:
        await live(client, teller, lambda: bool(stopped))


if __name__ == "__main__":
    asyncio.run(main())
