"""A service on asyncio: orders are served side by side, and committed when all of a batch are.

``asyncio.timeout``, a ``TaskGroup`` and Ctrl-C may cancel it anywhere: an order may be served again then, and is never lost.
"""

from __future__ import annotations

import asyncio

from _cluster import cluster, produce_orders

from ottla import AsyncConsumer, Record, TopicPartition


async def serve(order: Record) -> None:
    await asyncio.sleep(0.01)  # a database, another service ...
    print(f"{order.value.decode()} for {order.key.decode()}")


async def on_revoke(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
    committed = await consumer.commit()
    print("gives back", *(f"{tp} at {committed[tp].offset}" for tp in partitions))


async def main(bootstrap_servers: str) -> None:
    served = 0
    async with AsyncConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id="bar",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        await consumer.subscribe(["orders"], on_revoke=on_revoke)
        while served < 30:  # a service would say: while True
            records = await consumer.poll(timeout=1.0)
            async with asyncio.TaskGroup() as tasks:
                for record in records:
                    tasks.create_task(serve(record))
            served += len(records)
            if records:
                await consumer.commit()
    print(f"served {served} orders")


with cluster() as servers:
    produce_orders(servers, "orders", 30)
    asyncio.run(main(servers))
