"""The public calls of a producer that have to wait, as generators, and the callbacks of deliveries.

Owns the order of the steps of each call, and the failures that no one has looked at. Must not know threads, event loops or
requests. Invariant: a failure is raised, passed to a callback or logged; never none of the three.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ottla.client.produce.outcome import Call, Wait
from ottla.client.produce.topics import AwaitTopic
from ottla.config.producer import ProducerConfig
from ottla.errors import BrokerError, ClosedError, IllegalStateError, OttlaError, OttlaTimeoutError
from ottla.records.accumulator import RecordAccumulator
from ottla.records.arrow_delivery import ArrowDelivery, MemoryShort, WrittenRows
from ottla.records.batch_states import OUTCOMES, BatchState
from ottla.records.producer_queues import Delivery, ProducerBatch
from ottla.types import Now, RecordMetadata, TopicPartition

_log = logging.getLogger(__name__)

MAX_FAILED = 1_000
"""Failed batches that are kept for ``flush``. It raises one of them, and all of them may have been looked at by then."""

PATIENCE = 100
"""Milliseconds without any memory that became free, after which ``send_arrow`` sends the batches that it has not filled: what is
unacknowledged may stay so, and they are larger if it waits."""

_ENDED = OUTCOMES | {BatchState.SPLIT}


@dataclass(frozen=True, slots=True)
class Drain:
    """A command: batches are ready. ``is_urgent``: they leave without waiting for ``linger.ms``."""

    is_urgent: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Abandon:
    """A command: fail all batches without an outcome."""

    error: OttlaError


class ProducerCalls:
    """``submit`` sends a command to the network thread, ``thread_id`` returns the id of the calling one."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        submit: Callable[[object], None],
        thread_id: Callable[[], int],
    ) -> None:
        self.delivered: deque[tuple[Callable[[Delivery], object], Delivery]] = deque()
        """The callbacks that are due. The network thread adds to it, any other thread takes from it."""
        self.on_delivered: Callable[[], object] = lambda: None
        """Called by the network thread after it has added to ``delivered``."""
        self.refusal: Callable[[], OttlaError] = lambda: ClosedError("the producer is closed")
        """Returns why no record is accepted now."""
        self.transaction: Callable[[], object] = lambda: None
        """Returns the open transaction, to compare it with an earlier one: a record that waits must not become part of the next."""
        self._config = config
        self._accumulator = accumulator
        self._submit = submit
        self._thread_id = thread_id
        self._in_callbacks: set[int] = set()
        """The threads that run callbacks now."""
        self._failed: deque[ProducerBatch] = deque()
        """The failed batches since the last ``flush`` whose errors nothing has reported: the first ``MAX_FAILED`` of them."""

    def settled(self, batch: ProducerBatch) -> None:
        """Called by the network thread with each batch that has an outcome."""
        callbacks = batch.take_callbacks()
        batch.seen = batch.seen or len(callbacks) == batch.count
        if batch.error is not None and not batch.seen:
            if len(self._failed) >= MAX_FAILED:
                self._failed.extend(one for one in self._take_failed() if not one.seen)
            if len(self._failed) < MAX_FAILED:
                self._failed.append(batch)
        if callbacks:
            self.delivered.extend(callbacks)
            self.on_delivered()

    def run_callbacks(self) -> None:
        """Run the callbacks that are due. Their exceptions are logged; Ctrl-C in one leaves the others to the next call.

        Calls in a callback run no others: a thousand callbacks that send would nest a thousand deep.
        """
        me = self._thread_id()
        if not self.delivered or me in self._in_callbacks:
            return
        try:
            self._in_callbacks.add(me)
            while True:
                try:
                    callback, delivery = self.delivered.popleft()
                except IndexError:
                    return
                try:
                    callback(delivery)
                except Exception:
                    _log.exception("the callback of a delivery failed")
        finally:
            self._in_callbacks.discard(me)

    def send(self, topic: str, record: tuple[Any, ...], now: Now) -> Call[Delivery]:
        """Append a record for which there was no room, or no metadata, at first. It may wait for ``max.block.ms``."""
        partition, deadline = record[2] or 0, now.mono + self._config.max_block_ms
        transaction = self.transaction()
        while True:
            self._check_transaction(transaction)
            freed = self._accumulator.freed  # before the attempt: memory that becomes free after it ends the wait
            delivery = self._accumulator.append(topic, *record)
            if delivery is not None:
                return delivery
            if not self._accumulator.accepts:
                raise self.refusal()
            queues = self._accumulator.topics.get(topic)
            if queues is None or queues.partition_count <= partition:
                now = yield from self._await_topic(topic, partition, now, deadline)
            else:
                yield from self._await_memory(freed, deadline)

    def send_arrow(self, data: Any, topic: str | None, now: Now) -> Call[ArrowDelivery]:
        """Append the rows of Arrow data. Each wait, for memory or for a topic, may last ``max.block.ms``."""
        from ottla.records.arrow_input import RowEncoder  # takes milliseconds to import

        if not self._accumulator.accepts:
            raise self.refusal()
        encoder, transaction = RowEncoder(self._accumulator, data, topic), self.transaction()
        try:
            for step in encoder.steps():
                deadline = step.since + self._config.max_block_ms
                if isinstance(step, MemoryShort):
                    self._submit(Drain(is_urgent=True))
                    until = min(deadline, step.since + PATIENCE) if step.held else deadline
                    now = yield Wait(self._accumulator, step.is_met, until)
                    if now.mono >= until and not step.is_met():
                        if not step.held:
                            raise self._no_memory()
                        encoder.finish_all()
                else:
                    for (name, partition), row in sorted(step.rows.items(), key=lambda item: item[1]):
                        try:
                            now = yield from self._await_topic(name, partition, now, deadline)
                        except (OttlaTimeoutError, BrokerError) as error:  # not one of a connection, which no row can help
                            error.args = (f"row {row}: {error.args[0]}", *error.args[1:])
                            raise
                self._check_transaction(transaction)
        except ClosedError:
            raise self.refusal() from None
        except Exception as error:
            if (count := encoder.delivery.count) and self._config.transactional_id is None:
                error.add_note(f"{count} rows before that were accepted; flush() and close() raise if they are not written")
            raise
        return encoder.delivery

    def _check_transaction(self, transaction: object) -> None:
        """Raise if the transaction in which a call began has ended while it waited."""
        if self.transaction() is not transaction:
            raise IllegalStateError("the transaction has ended while records waited for memory, or for their topic")

    def wait_for_rows(self, delivery: ArrowDelivery, until: int | None) -> Call[list[WrittenRows]]:
        """Wait for the outcome of the rows of a call."""
        while (batch := delivery.pending()) is not None:
            now = yield Wait(batch, partial(is_settled, batch), until)
            if until is not None and now.mono >= until and delivery.pending() is not None:
                raise OttlaTimeoutError("some rows have no outcome within the timeout; they may still be written")
        if (error := delivery.error()) is not None:
            raise error.afresh()
        return delivery.written()

    def partitions_for(self, topic: str, now: Now) -> Call[list[int]]:
        """Return the partitions of a topic."""
        yield from self._await_topic(topic, 0, now, now.mono + self._config.max_block_ms)
        return list(range(self._accumulator.topics[topic].partition_count))

    def _await_topic(self, topic: str, partition: int, now: Now, deadline: int) -> Call[Now]:
        command = AwaitTopic(topic, partition, deadline)
        self._submit(command)
        while not command.outcome.done:
            now = yield Wait(command.outcome, lambda: command.outcome.done, None)
        if command.outcome.error is not None:
            raise command.outcome.error.afresh()
        return now

    def _await_memory(self, freed: int, deadline: int) -> Call[None]:
        accumulator = self._accumulator
        self._submit(Drain(is_urgent=True))
        now = yield Wait(accumulator, lambda: accumulator.freed != freed, deadline)
        if now.mono >= deadline and accumulator.freed == freed:
            raise self._no_memory()

    def _no_memory(self) -> OttlaTimeoutError:
        sizes: dict[TopicPartition, int] = {}
        for batch in list(self._accumulator.incomplete):
            tp = batch.queue.tp
            sizes[tp] = sizes.get(tp, 0) + batch.memory_size
        most = sorted(sizes, key=lambda tp: -sizes[tp])[:3]
        held = ", ".join(f"{tp} with {sizes[tp]} bytes" for tp in most)
        limit, within = self._config.buffer_memory, f"{self._config.max_block_ms / 1000:g} s"
        text = f"no memory for the record within {within}: buffer.memory is {limit}, held by unacknowledged records of {held}"
        return OttlaTimeoutError(text, hint="send more slowly, flush() now and then, or increase buffer_memory or max_block")

    def wait(self, delivery: Delivery, until: int | None) -> Call[RecordMetadata]:
        """Wait for the outcome of a record."""
        while not is_settled(batch := delivery.batch.part_of(delivery.index)[0]):
            now = yield Wait(batch, partial(is_settled, batch), until)
            if until is not None and now.mono >= until and not is_settled(batch):
                raise OttlaTimeoutError("the record has no outcome within the timeout; it may still be written")
        return metadata_of(delivery)

    def flush(self, until: int | None) -> Call[None]:
        """Send all records, wait for their outcomes, and raise the first failure that nothing has reported."""
        yield from self._flush(until)
        self.raise_failure()

    def _flush(self, until: int | None) -> Call[None]:
        pending = self._accumulator.close_all()
        if pending:
            self._submit(Drain())
        while pending:
            self.run_callbacks()
            batch = pending[-1]
            if is_settled(batch):
                pending.pop()
                pending.extend(batch.parts or ())
                continue
            now = yield Wait(batch, partial(is_settled, batch), until)
            if until is not None and now.mono >= until and not is_settled(batch):
                count = sum(one.count for one in pending if not is_settled(one))
                raise OttlaTimeoutError(f"{count} record{'s have' if count > 1 else ' has'} no outcome within the timeout")
        self.run_callbacks()

    def _take_failed(self) -> list[ProducerBatch]:
        """Remove and return the failed batches up to now. The network thread may add others meanwhile."""
        taken: list[ProducerBatch] = []
        with suppress(IndexError):  # another thread takes them, too
            taken.extend(self._failed.popleft() for _ in range(len(self._failed)))
        return taken

    def forget_failure(self) -> None:
        """Do not raise the failures up to now: the end of their transaction has reported them."""
        self._take_failed()

    def raise_failure(self) -> None:
        """Raise the first failure since the last call, if no one has looked at it."""
        failed = next((batch for batch in self._take_failed() if not batch.seen), None)
        if failed is not None and failed.error is not None:
            failed.seen = True
            raise failed.error.afresh()

    def close(self, until: int) -> Call[None]:
        """Accept no more records, and send what can be sent until then."""
        self._accumulator.accepts = False
        self.refusal = lambda: ClosedError("the producer is closed")
        with suppress(OttlaTimeoutError):
            yield from self._flush(until)


def is_settled(batch: ProducerBatch) -> bool:
    """Whether a batch has an outcome, or was divided."""
    return batch.state in _ENDED


def metadata_of(delivery: Delivery) -> RecordMetadata:
    """Return where a record was written; raise its error."""
    batch, index = delivery.batch.part_of(delivery.index)
    batch.seen = True
    if batch.error is not None:
        raise batch.error.afresh()
    offset = -1 if batch.base_offset is None else batch.base_offset + index
    stamp = delivery.timestamp if batch.log_append_time is None else batch.log_append_time
    return RecordMetadata(*batch.queue.tp, offset, stamp)
