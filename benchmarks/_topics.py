"""The topics of the benchmarks of clients."""

from __future__ import annotations

import time

import confluent_kafka
from confluent_kafka import admin


def create(servers: str, topic: str, partitions: int) -> bool:
    """Create a topic unless it exists. Return whether it was created."""
    client = admin.AdminClient({"bootstrap.servers": servers})
    if topic in client.list_topics(timeout=30).topics:
        return False
    client.create_topics([admin.NewTopic(topic, partitions, 1)])[topic].result(60)
    while not _is_led(client.list_topics(topic, timeout=30).topics[topic], partitions):
        time.sleep(0.1)
    return True


def delete(servers: str, topic: str) -> None:
    """Delete a topic. The broker frees the disk later."""
    client = admin.AdminClient({"bootstrap.servers": servers})
    client.delete_topics([topic])[topic].result(60)


def _is_led(topic: admin.TopicMetadata, partitions: int) -> bool:
    """Whether all partitions have leaders: CreateTopics returns earlier."""
    return len(topic.partitions) == partitions and all(one.leader >= 0 for one in topic.partitions.values())


def fill(servers: str, records: int, size: int, partitions: int, codec: str = "none") -> str:
    """Return a topic with so many records, and create it if needed. Keys have 8 bytes; values compress about as well as JSON."""
    topic = f"bench-{records}-{size}-{partitions}-{codec}"
    if not create(servers, topic, partitions):
        return topic
    settings = {"linger.ms": 50, "batch.size": 131_072, "compression.type": codec, "queue.buffering.max.kbytes": 262_144}
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, **settings, "queue.buffering.max.messages": 1_000_000})
    values = [value(number, size) for number in range(1_000)]
    for number in range(records):
        while True:
            try:
                producer.produce(topic, values[number % 1_000], b"%08d" % number, number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return topic


def value(number: int, size: int) -> bytes:
    """Return JSON of a table of flights."""
    row = b'{"carrier":"UA","flight":%d,"origin":"EWR","dest":"IAH","hour":%d,"distance":%d} '
    rows = [row % (number * 37 % 9_973, (number + line) % 24, (number + line) * 7 % 4_000) for line in range(size // 70 + 1)]
    return b"".join(rows)[:size].ljust(size)
