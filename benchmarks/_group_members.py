"""Members of a large group, in one process, that say when they read.

    python benchmarks/_group_members.py PROTOCOL SERVERS TOPIC

For each line on stdin a member starts; at the end of stdin all leave. It prints JSON lists: ``["assigned", member, partitions,
seconds]`` and ``["revoked", ...]`` for the calls of its listeners, and ``["read", ...]`` for the first record of a partition
since its assignment.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from ottla import AsyncConsumer, TopicPartition

SETTINGS: dict[str, dict[str, Any]] = {"classic": {"session_timeout": 45}, "central": {"session_timeout": 45}, "consumer": {}}


def say(kind: str, member: str, partitions: list[int]) -> None:
    """Print an event."""
    print(json.dumps([kind, member, partitions, time.time()]), flush=True)


async def member(protocol: str, servers: str, topic: str, name: str) -> None:
    """Read until the process ends."""
    unread: set[TopicPartition] = set()

    def assigned(consumer: Any, partitions: list[TopicPartition]) -> None:
        unread.update(partitions)
        say("assigned", name, [one.partition for one in partitions])

    def revoked(consumer: Any, partitions: list[TopicPartition]) -> None:
        unread.difference_update(partitions)
        say("revoked", name, [one.partition for one in partitions])

    settings = {"group_protocol": protocol, "client_id": name, "auto_offset_reset": "latest", **SETTINGS[protocol]}
    async with AsyncConsumer(bootstrap_servers=servers, group_id=topic, **settings) as consumer:
        await consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        while True:
            for record in await consumer.poll(timeout=1):
                place = TopicPartition(record.topic, record.partition)
                if place in unread:
                    unread.remove(place)
                    say("read", name, [record.partition])


async def main(protocol: str, servers: str, topic: str) -> None:
    """Start a member for each line."""
    tasks = []
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        tasks.append(asyncio.create_task(member(protocol, servers, topic, line.strip())))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # each leaves the group


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
