"""A service on asyncio that serves the orders of a batch concurrently and commits when all are served.

With bootstrap servers on the command line it runs until Ctrl-C or SIGTERM. Both cancel ``main()`` at any point: the consumer leaves
its group immediately, another member gets the uncommitted orders, and none is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

from _cluster import cluster, produce_orders

from ottla import AsyncConsumer, Record, TopicPartition

ENOUGH = sys.maxsize if len(sys.argv) > 1 else 30


async def serve(order: Record[str, str]) -> None:
    await asyncio.sleep(0.01)  # a database, another service ...
    print(f"{order.value} for {order.key}")


async def on_revoke(consumer: AsyncConsumer[str, str], partitions: list[TopicPartition]) -> None:
    # Served orders are already committed. commit() without offsets would also commit unfinished orders of a cancelled batch.
    committed = await consumer.committed(*partitions)
    print("gives back", *(f"{tp} at {position.offset if position else 'nothing'}" for tp, position in committed.items()))


def stop_on_sigterm() -> None:
    """Cancel this task on SIGTERM, as ``asyncio.run`` does on Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):  # Windows has no SIGTERM
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def main(bootstrap_servers: str) -> None:
    stop_on_sigterm()
    served = 0
    async with AsyncConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id="bar",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        key_deserializer=bytes.decode,
        value_deserializer=bytes.decode,
    ) as consumer:
        await consumer.subscribe(["orders"], on_revoke=on_revoke)
        while served < ENOUGH:
            records = await consumer.poll(timeout=1.0)
            async with asyncio.TaskGroup() as tasks:
                for record in records:
                    tasks.create_task(serve(record))
            served += len(records)
            if records:
                await consumer.commit(records.next_offsets())
                print(f"served {served} orders", flush=True)


with cluster() as servers:
    produce_orders(servers, "orders", 30)
    try:
        asyncio.run(main(servers))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped")
