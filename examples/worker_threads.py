"""Worker threads that do not wait for the slowest record of a poll.

Records finish in any order, but a commit is one offset per partition, and all records before it must be finished. So the program
commits the offset of the first unfinished record. A failed record ends the program; it and all later ones are delivered again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait

from _cluster import cluster, produce_orders

from ottla import Consumer, Record, TopicPartition
from ottla.signals import stop_on_signals

MOST = 1_000
"""The maximum number of records that the workers may have."""


class Pending:
    """The records passed to workers, by partition, in the order of their offsets. Only the polling thread uses it."""

    def __init__(self) -> None:
        self._futures: dict[TopicPartition, dict[int, Future[None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._futures.values()))

    def add(self, record: Record[str, str], future: Future[None]) -> None:
        self._futures.setdefault(TopicPartition(record.topic, record.partition), {})[record.offset] = future

    def finished(self) -> dict[TopicPartition, int]:
        """The new offsets to commit: the offset after the finished records at the beginning of each partition."""
        offsets = {}
        for tp, futures in self._futures.items():
            for offset, future in list(futures.items()):
                if not future.done() or future.exception() is not None:
                    break
                del futures[offset]
                offsets[tp] = offset + 1
        return offsets

    def check(self) -> None:
        """Raise the exception of a failed worker."""
        for futures in self._futures.values():
            for future in futures.values():
                if future.done():
                    future.result()

    def on_revoke(self, consumer: Consumer[str, str], partitions: Collection[TopicPartition]) -> None:
        """Finish and commit the records in progress: the next owner starts after them."""
        wait([future for tp in partitions for future in self._futures.get(tp, {}).values()])
        if offsets := self.finished():
            consumer.commit(offsets)
        self.on_lost(consumer, partitions)

    def on_lost(self, consumer: Consumer[str, str], partitions: Collection[TopicPartition]) -> None:
        """Forget the partitions: another member owns them and reads the uncommitted records again."""
        for tp in partitions:
            self._futures.pop(tp, None)


def serve(order: Record[str, str]) -> None:
    time.sleep(0.01 * (order.offset % 3))  # some take longer
    print(f"{order.value} for {order.key}\n", end="")


def work(bootstrap_servers: str) -> None:
    pending, taken = Pending(), 0
    with (
        ThreadPoolExecutor(max_workers=8) as pool,
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
        consumer.subscribe(["orders"], on_revoke=pending.on_revoke, on_lost=pending.on_lost)
        while taken < 30:  # a real service would use: while True
            for record in consumer.poll(timeout=0.1):
                pending.add(record, pool.submit(serve, record))
                taken += 1
            pending.check()
            if offsets := pending.finished():
                consumer.commit_async(offsets)
            if len(pending) < MOST:
                consumer.resume(*consumer.paused())
            else:  # the workers are behind: keep polling, to stay in the group, but take no more records
                consumer.pause(*consumer.assignment())


if __name__ == "__main__":
    with cluster() as servers:
        produce_orders(servers, "orders", 30)
        work(servers)
        with Consumer(bootstrap_servers=servers, group_id="bar") as reader:
            for tp, position in reader.committed(TopicPartition("orders", 0)).items():
                print(f"committed: {tp} at {position.offset if position else 'nothing'}")
