"""A service that reads orders and writes invoices: each order has one invoice, whatever is killed or restarted meanwhile.

The offsets of the orders are committed in the transaction that writes the invoices. Consumers of the invoices read them with
``isolation_level="read_committed"``.
"""

from __future__ import annotations

from _cluster import cluster, produce_orders

import ottla
from ottla import Consumer, Producer
from ottla.signals import stop_on_signals

with cluster() as bootstrap_servers:
    produce_orders(bootstrap_servers, "orders", 30)
    billed = 0
    with (
        Consumer(
            bootstrap_servers=bootstrap_servers,
            group_id="billing",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            value_deserializer=bytes.decode,
        ) as consumer,
        Producer(bootstrap_servers=bootstrap_servers, transactional_id="billing-1") as producer,
        stop_on_signals(consumer),
    ):
        consumer.subscribe(["orders"])
        for transaction, records in ottla.transactions(consumer, producer):
            for record in records:
                producer.send("invoices", f"invoice for {record.value}", key=record.key)
            billed += len(records)
            if billed == 30:  # a real service goes on
                transaction.commit()
                break
    print(f"wrote {billed} invoices")
