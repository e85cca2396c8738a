"""A thread pool for the records of each poll: wait for all of them, then commit, then poll again.

Automatic commits must be off: the next ``poll()`` would count records as processed that a thread is still working on.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from _cluster import cluster, produce_orders

from ottla import Consumer, Record
from ottla.signals import stop_on_signals


def serve(order: Record[str, str]) -> str:
    time.sleep(0.01)  # a database, another service ...
    return f"{order.value} for {order.key}"


with cluster() as bootstrap_servers:
    produce_orders(bootstrap_servers, "orders", 30)
    served = 0
    with (
        ThreadPoolExecutor(max_workers=8) as pool,
        Consumer(
            bootstrap_servers=bootstrap_servers,
            group_id="bar",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=100,
            key_deserializer=bytes.decode,
            value_deserializer=bytes.decode,
        ) as consumer,
        stop_on_signals(consumer),
    ):
        consumer.subscribe(["orders"])
        while served < 30:  # a real service would use: while True
            records = consumer.poll(timeout=1.0)
            for line in pool.map(serve, records):  # raises the exception of a thread; then nothing of this poll is committed
                print(line)
                served += 1
            if records:
                consumer.commit()
    print(f"served {served} orders")
