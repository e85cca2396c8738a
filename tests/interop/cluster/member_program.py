"""One member of a group that reads several topics, as a process: Ottla's consumer, told to commit what each poll gave.

Owns how the member lives and what it tells. Must not know what happens to the cluster. Invariants: each line on stdout is one JSON
object in the order in which things happened; whatever was consumed is told before it is committed. SIGTERM lets the member leave
well; the process ends with 0 then.

A partition that is owned is told as ``topic-partition``, one that was read as ``topic.incarnation-partition``: the incarnation is
in the value of each record, since a topic that was made anew has the same name and the same offsets as before.

    python member_program.py SETTINGS     SETTINGS: a JSON object with the fields of ``Settings``
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

import ottla
from ottla import OffsetAndMetadata, Records, TopicPartition
from ottla.errors import OttlaError

POLL = 0.2
"""Seconds of a poll without records."""


@dataclass(frozen=True)
class Settings:
    """What a member is told. Times in milliseconds."""

    servers: str
    topics: list[str]
    group: str
    member: str
    protocol: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignor: str
    """By its name on the wire; of classic groups."""


class Teller:
    """Prints what happens, and counts how often the member was given each partition."""

    def __init__(self, member: str) -> None:
        self._member = member
        self._given: dict[TopicPartition, int] = {}

    def tell(self, name: str, **fields: object) -> None:
        print(json.dumps({"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}), flush=True)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        given = sorted(partitions)
        for tp in given:
            self._given[tp] = self._given.get(tp, 0) + 1
        self.tell("partitions_assigned", partitions=[{"partition": str(tp)} for tp in given])

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self.tell("partitions_revoked", partitions=[{"partition": str(tp)} for tp in sorted(partitions)])

    def consumed(self, records: Records) -> dict[TopicPartition, OffsetAndMetadata]:
        """Tell what came; what is to be committed now."""
        rows: dict[str, list[int]] = {}
        wanted: dict[TopicPartition, OffsetAndMetadata] = {}
        for record in records:
            incarnation = record.value.decode().split(":")[0]
            tp = TopicPartition(record.topic, record.partition)
            rows.setdefault(f"{record.topic}.{incarnation}-{record.partition}", []).append(record.offset)
            wanted[tp] = OffsetAndMetadata(record.offset + 1, f"{self._member}/{self._given.get(tp, 0)}/{incarnation}")
        ranges = [
            {"partition": key, "count": len(set(found)), "minOffset": min(found), "maxOffset": max(found)}
            for key, found in rows.items()
        ]
        self.tell("records_consumed", partitions=ranges)
        return wanted

    def committed(self, offsets: dict[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        rows = [
            {
                "partition": f"{tp.topic}.{position.metadata.split('/')[-1]}-{tp.partition}",
                "offset": position.offset,
                "note": position.metadata,
            }
            for tp, position in offsets.items()
        ]
        why = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
        self.tell("offsets_committed", offsets=rows, success=error is None, **why)


def live(consumer: ottla.Consumer, teller: Teller, stopped: ottla.StopSignal) -> None:
    """Poll and commit what came, until told to stop. What the consumer raises is told, and life goes on."""
    while not stopped:
        try:
            records = consumer.poll(POLL)
        except OttlaError as error:
            teller.tell("error", error=f"{type(error).__name__}: {error}")
            continue
        if not records:
            continue
        wanted = teller.consumed(records)
        failed = None
        try:
            consumer.commit(wanted, timeout=10)
        except OttlaError as error:
            failed = error
        teller.committed(wanted, failed)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = Settings(**json.loads(sys.argv[1]))
    teller = Teller(settings.member)
    classic = {
        "session_timeout_ms": settings.session_timeout_ms,
        "heartbeat_interval_ms": settings.heartbeat_interval_ms,
        "partition_assignment_strategy": [settings.assignor],
    }
    consumer = ottla.Consumer(
        bootstrap_servers=settings.servers,
        group_id=settings.group,
        client_id=settings.member,
        group_protocol=settings.protocol,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=2_000,
        **(classic if settings.protocol == "classic" else {}),
    )
    consumer.subscribe(
        settings.topics,
        on_assign=lambda _, found: teller.assigned(found),
        on_revoke=lambda _, found: teller.revoked(found),
    )
    teller.tell("startup_complete")
    with ottla.stop_on_signals(consumer) as stopped:
        live(consumer, teller, stopped)
    consumer.close()
    teller.tell("shutdown_complete")


if __name__ == "__main__":
    main()
