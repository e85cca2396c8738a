"""``AsyncProducer``: the public API of a producer for tasks of an event loop.

Owns the signatures, and the wait of tasks. Must not know batches, requests or retries. Invariants: nothing here blocks the event
loop; callbacks run on it; a task that only sends lets other tasks run every ``YIELD_INTERVAL``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from ottla import arguments
from ottla.arguments import Timeout
from ottla.errors import IllegalStateError, OttlaError
from ottla.producer_base import CLOSE_TIMEOUT, END_GRACE, DeliveryCallback, ProducerBase
from ottla.producer_drivers import TaskWaits, drive_in_task, soon, until
from ottla.records.arrow_delivery import ArrowDelivery
from ottla.records.producer_queues import Delivery
from ottla.runtime import clock
from ottla.transaction import AsyncTransaction

YIELD_INTERVAL = 0.01
"""Seconds for which ``send`` may succeed without letting other tasks run."""


class AsyncProducer(ProducerBase):
    """``Producer`` for asyncio: the same settings, the same calls with ``await``.

    ::

        async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
            delivery = await producer.send("orders", b"value", key=b"key")     # the record is in a batch
            metadata = await delivery                                            # the record is written

    A producer belongs to one event loop; any of its tasks may use it. A cancelled ``send`` has not sent the record, a cancelled
    wait for a delivery does not take the record back.
    """

    def _prepare(self) -> None:
        self._accumulator.waits = TaskWaits(self._network)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        """The thread of the event loop."""
        self._yield_at = 0.0
        self._must_yield = False

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close. After an exception, a failure to write records is a note on it."""
        try:
            await self.close()
        except OttlaError as closing:
            if error is None:
                raise
            closing.__context__ = None
            error.add_note(f"closing the producer failed, too: {closing}")

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Any = (),
        timestamp: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """As ``Producer.send``. ``on_delivery`` is called on the event loop."""
        if self._thread_id != get_ident():  # quicker than to look up the event loop
            self._check_loop()
        if self._serialize:
            key, value = self._serialized(key, value)
        if self._must_yield:  # before the record is in a batch, so that a task that is cancelled here has not sent it
            self._must_yield = False
            await asyncio.sleep(0)
            self._yield_at = clock.monotonic() + YIELD_INTERVAL
        delivery = self._append(topic, value, key, partition, headers, timestamp, on_delivery)
        if delivery is None:
            self._check_loop()
            call = self._waiting_send(topic, value, key, partition, headers, timestamp, on_delivery)
            return await drive_in_task(self._network, call)
        if delivery.index == 0:  # the first record of a batch: looked at once a batch
            self._must_yield = clock.monotonic() >= self._yield_at
        return delivery

    async def send_arrow(self, data: Any, topic: str | None = None) -> ArrowDelivery:
        """As ``Producer.send_arrow``."""
        self._check_loop()
        return await drive_in_task(self._network, self._calls.send_arrow(data, topic, clock.now()))

    async def send_many(self, topic: str, records: Iterable[Any]) -> list[Delivery]:
        """As ``Producer.send_many``."""
        deliveries: list[Delivery] = []
        for item in arguments.records(records):
            if not isinstance(item, tuple):
                deliveries.append(await self.send(topic, item))
            elif len(item) == 2:
                deliveries.append(await self.send(topic, item[1], item[0]))
            else:
                raise arguments.no_pair(item, len(deliveries))
        return deliveries

    async def initialize(self) -> None:
        """As ``Producer.initialize``."""
        self._check_loop()
        await drive_in_task(self._network, self._transaction_calls().initialize(clock.now()))

    def transaction(self) -> AsyncTransaction:
        """A transaction, which an ``async with`` block begins and ends. Needs ``transactional_id``."""
        self._check_loop()
        return AsyncTransaction(self._network, self._transaction_calls())

    async def flush(self, timeout: Timeout = None) -> None:
        """As ``Producer.flush``."""
        self._check_loop()
        await drive_in_task(self._network, self._calls.flush(until(timeout)))

    async def partitions_for(self, topic: str) -> list[int]:
        """As ``Producer.partitions_for``."""
        self._check_loop()
        return await drive_in_task(self._network, self._calls.partitions_for(arguments.topic(topic), clock.now()))

    async def close(self, timeout: Timeout = CLOSE_TIMEOUT) -> None:
        """As ``Producer.close``. If it is cancelled, the records are still being written; another ``close()`` waits for them."""
        network = self._network
        network.check_process()
        if network.shared.closed:
            return
        self._check_loop()
        limit = arguments.milliseconds(timeout, round(CLOSE_TIMEOUT * 1000))
        try:
            await drive_in_task(network, network.closing(clock.now().mono + limit))
        except Exception:
            await self._end()
            raise
        await self._end()
        self._calls.raise_failure()

    async def _end(self) -> None:
        self._network.shared.closed = True
        await asyncio.shield(asyncio.to_thread(self._network.close, END_GRACE))
        self._calls.run_callbacks()

    def _check_loop(self) -> None:
        """Raise if the producer is closed, or belongs to another event loop than the running one."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise IllegalStateError(
                "the producer belongs to another event loop", hint="create, use and close it within one asyncio.run()"
            )
        if self._loop is None:
            self._loop, self._thread_id = loop, get_ident()
            self._calls.on_delivered = soon(loop, self._calls.run_callbacks)
