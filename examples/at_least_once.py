"""A service: handle each order, then commit; Ctrl-C and SIGTERM end it between two batches.

An order is handled again if the process dies between handling and committing, and never lost.
"""

from __future__ import annotations

from _cluster import cluster, produce_orders

from ottla import Consumer
from ottla.signals import stop_on_signals

with cluster() as bootstrap_servers:
    produce_orders(bootstrap_servers, "orders", 30)
    served = 0
    with (
        Consumer(
            bootstrap_servers=bootstrap_servers,
            group_id="bar",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            key_deserializer=bytes.decode,
            value_deserializer=bytes.decode,
        ) as consumer,
        stop_on_signals(consumer),
    ):
        consumer.subscribe(["orders"])
        while served < 30:  # a real service would use: while True
            records = consumer.poll(timeout=1.0)
            for record in records:
                print(f"{record.value} for {record.key}")
                served += 1
            if records:
                consumer.commit()
    print(f"served {served} orders")
