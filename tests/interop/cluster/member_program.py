"""One member of a group that reads several topics, as a process: Ottla's consumer, living as ``groups/member_lifecycle.py`` says.

Owns how the consumer is set up and how partitions are named. Must not know what happens to the cluster. Invariant: SIGTERM lets the
member leave well; the process ends with 0 then.

The lines name an owned partition ``topic-partition``, and one that was read ``topic.incarnation-partition``: the incarnation is
in the value of each record, since a topic that was recreated has the same name and the same offsets as before.

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
    """A commit says which incarnation of the topic it is of; there is one a partition, of the incarnation that came last."""

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
