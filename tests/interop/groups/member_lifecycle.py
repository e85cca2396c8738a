"""The loop and the output of a group's member, for all Python clients. The output is that of Kafka's VerifiableConsumer.

Owns the loop of poll and commit, and the output. Must not know a client, nor the tests. Invariants: each line on stdout is one JSON
object with ``name`` and ``timestamp`` (wall-clock milliseconds), in the order of the events; the line about consumed records
precedes their commit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

POLL = 0.2
"""Seconds of a poll without records."""

Key = TypeVar("Key", int, str)
"""How partitions go: by number where there is one topic, else by name."""


class Client(Protocol[Key]):
    """A client that has subscribed."""

    failures: type[Exception]
    """What it may raise where all is well with the client itself: the member tells it and lives on."""

    async def poll(self) -> dict[Key, list[int]]:
        """The offsets that came, by partition."""
        ...

    async def commit(self, offsets: Mapping[Key, tuple[int, str]]) -> None:
        """Commit these offsets with their notes, or raise what the client raises."""
        ...

    async def close(self) -> None: ...


class Teller(Generic[Key]):
    """Prints the events of one member, and counts the assignments of each partition."""

    def __init__(self, member: str) -> None:
        self._member = member
        self._given: dict[Key, int] = {}

    def tell(self, name: str, **fields: Any) -> None:
        print(json.dumps({"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}), flush=True)

    def assigned(self, partitions: Iterable[Key]) -> None:
        given = sorted(partitions)
        for partition in given:
            self._given[partition] = self._given.get(partition, 0) + 1
        self.tell("partitions_assigned", partitions=[{"partition": partition} for partition in given])

    def revoked(self, partitions: Iterable[Key]) -> None:
        self.tell("partitions_revoked", partitions=[{"partition": partition} for partition in sorted(partitions)])

    def consumed(self, offsets: Mapping[Key, list[int]]) -> None:
        ranges = [
            {"partition": partition, "count": len(set(found)), "minOffset": min(found), "maxOffset": max(found)}
            for partition, found in offsets.items()
        ]
        self.tell("records_consumed", count=sum(map(len, offsets.values())), partitions=ranges)

    def committed(self, offsets: Mapping[Key, tuple[int, str]], error: Exception | None) -> None:
        rows = [{"partition": partition, "offset": offset, "note": note} for partition, (offset, note) in offsets.items()]
        why = {} if error is None else {"error": _words(error)}
        self.tell("offsets_committed", offsets=rows, success=error is None, **why)

    def due(self, offsets: Mapping[Key, list[int]]) -> dict[Key, tuple[int, str]]:
        """Return the offset to commit and its note for each partition of the records."""
        return {partition: (found[-1] + 1, self.note(partition)) for partition, found in offsets.items()}

    def note(self, partition: Key) -> str:
        """Return the metadata of a committed offset: the member, and its number of assignments of the partition."""
        return f"{self._member}/{self._given.get(partition, 0)}"


def log_to_stderr() -> None:
    """What clients log is kept beside what the member tells."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


async def live(client: Client[Any], teller: Teller[Any], stopped: Callable[[], bool]) -> None:
    """Poll and commit what came, until requested to stop, and leave well."""
    while not stopped():
        try:
            offsets = await client.poll()
        except client.failures as error:
            teller.tell("error", error=_words(error))
            await asyncio.sleep(POLL)
            continue
        await asyncio.sleep(0)  # here a task that stops the member can run
        if not offsets:
            continue
        teller.consumed(offsets)
        wanted = teller.due(offsets)
        failed = None
        try:
            await client.commit(wanted)
        except client.failures as error:
            failed = error
        teller.committed(wanted, failed)
    await client.close()
    teller.tell("shutdown_complete")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
