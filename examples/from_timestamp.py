"""Read from a timestamp on, without a group: seek each partition to its offset for that time."""

from __future__ import annotations

from _cluster import cluster, produce_orders

from ottla import Consumer, TopicPartition

NOON = 1_700_000_000_000
SINCE = NOON + 20_000

with cluster() as bootstrap_servers:
    produce_orders(bootstrap_servers, "orders", 30, first_timestamp=NOON)
    with Consumer(bootstrap_servers=bootstrap_servers, key_deserializer=bytes.decode, value_deserializer=bytes.decode) as consumer:
        partitions = [TopicPartition("orders", each.partition) for each in consumer.partitions_for("orders")]
        consumer.assign(partitions)
        found = consumer.offsets_for_times(dict.fromkeys(partitions, SINCE))
        ends = consumer.end_offsets(partitions)
        for partition in partitions:
            since = found[partition]
            consumer.seek(partition, ends[partition] if since is None else since.offset)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for record in consumer.poll(timeout=1.0):
                print(f"+{(record.timestamp - NOON) // 1000} s {record.key}: {record.value}")
