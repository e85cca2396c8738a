"""A batch of records as Arrow columns, without a Python object per record."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from _cluster import cluster, produce_orders

from ottla import Consumer, TopicPartition

with cluster() as bootstrap_servers:
    produce_orders(bootstrap_servers, "orders", 30)
    with Consumer(bootstrap_servers=bootstrap_servers, max_poll_records=10_000) as consumer:
        partitions = [TopicPartition("orders", each.partition) for each in consumer.partitions_for("orders")]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        tables, rows = [], 0
        while rows < 30:
            batch = pa.table(consumer.poll(timeout=1.0))
            tables.append(batch)
            rows += batch.num_rows
    orders = pa.concat_tables(tables)
    drinks = orders.append_column("drink", pc.cast(orders["value"], pa.string()))
    for row in drinks.group_by("drink").aggregate([("offset", "count")]).sort_by("drink").to_pylist():
        print(f"{row['drink']}: {row['offset_count']}")
