"""``Producer``: the public API of a producer for threads.

Owns the signatures, and the wait of the threads that call it. Must not know batches, requests or retries. Invariants: a record that
was accepted is written, or its failure is raised, passed to its callback or logged; an exception that leaves a ``with`` block is
never hidden by one of ``close()``.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from ottla import arguments
from ottla.arguments import Timeout
from ottla.errors import OttlaError
from ottla.producer_base import CLOSE_TIMEOUT, END_GRACE, ProducerBase
from ottla.producer_drivers import ThreadWaits, drive_in_thread, until
from ottla.records.accumulator import RecordSender
from ottla.records.arrow_delivery import ArrowDelivery
from ottla.records.producer_queues import Delivery
from ottla.runtime import clock
from ottla.transaction import Transaction


class Producer(ProducerBase, RecordSender):
    """A producer, with the settings of Kafka's own: ``Producer(bootstrap_servers="localhost:9092")``.

    ::

        with Producer(bootstrap_servers="localhost:9092") as producer:
            producer.send("orders", b"value", key=b"key")

    Several threads may use a producer at once. ``send`` returns as soon as the record is in a batch; a network thread writes the
    batches, and repeats what fails. By default a producer is idempotent: no retry doubles or reorders records.

    How a failure is reported: ``Delivery.result()`` raises it, an ``on_delivery`` callback gets it, and ``flush()`` and ``close()``
    raise the first one that neither has seen. One that nothing has reported is logged. Calls also raise:

    * ``OttlaTimeoutError`` if a topic is not found, or memory does not become free, within ``max_block``;
    * ``TypeError``, ``ValueError`` and ``MessageTooLargeError`` for what cannot be written.
    """

    def _prepare(self) -> None:
        self._accumulator.waits = ThreadWaits(self._network)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close. After an exception, a failure to write records is a note on it."""
        try:
            self.close()
        except OttlaError as closing:
            if error is None:
                raise
            closing.__context__ = None
            error.add_note(f"closing the producer failed, too: {closing}")

    def _send_later(self, *record: Any) -> Delivery:
        """``send``, for a record that cannot be added to a batch at once."""
        self._check_open()
        return drive_in_thread(self._network, self._waiting_send(*record))

    def send_arrow(self, data: Any, topic: str | None = None) -> ArrowDelivery:
        """Send the rows of Arrow data; return the future outcome of all of them.

        ``data`` is anything with ``__arrow_c_stream__``: a table of pyarrow, a DataFrame of polars or pandas, a relation of duckdb,
        ``Records`` of a consumer. Its columns are ``value`` and, if they are there, ``key``, ``topic``, ``partition``, ``headers``
        and ``timestamp``, as in ``Records.to_arrow()``; ``topic`` is where all rows go instead. Rows are written in batches of up
        to ``max_request_size``.

        Raises ``TypeError`` for columns of other types, ``ValueError`` for rows that cannot be records. The rows before the one in
        the error may be written.
        """
        if self._delivered:
            self._calls.run_callbacks()
        self._check_open()
        return drive_in_thread(self._network, self._calls.send_arrow(data, topic, clock.now()))

    def send_many(self, topic: str, records: Iterable[Any]) -> list[Delivery]:
        """Send the values in ``records`` to a topic, or pairs of a key and a value; return their future outcomes.

        Raises for an item that ``send`` refuses, and for a tuple that is not a pair; those before it are sent.
        """
        deliveries: list[Delivery] = []
        for item in arguments.records(records):
            if not isinstance(item, tuple):
                deliveries.append(self.send(topic, item))
            elif len(item) == 2:
                deliveries.append(self.send(topic, item[1], item[0]))
            else:
                raise arguments.no_pair(item, len(deliveries))
        return deliveries

    def initialize(self) -> None:
        """Get an epoch for ``transactional_id``: this aborts what an earlier producer with this id has left open, and fences it.

        The first transaction does that, too. After ``Transaction.prepare()``, or an error after which the producer cannot go on,
        this makes it usable again. Raises ``OttlaTimeoutError`` after ``max_block``.
        """
        drive_in_thread(self._network, self._transaction_calls().initialize(clock.now()))

    def transaction(self) -> Transaction:
        """A transaction, which a ``with`` block begins and ends. Needs ``transactional_id``."""
        return Transaction(self._network, self._transaction_calls())

    def flush(self, timeout: Timeout = None) -> None:
        """Send all records now, and wait until they have an outcome.

        Raises the first failure since the last ``flush`` that nothing has reported; ``OttlaTimeoutError`` if some records have no
        outcome within ``timeout`` (seconds; ``None``: as long as it takes, which is at most ``delivery_timeout``).
        """
        self._check_open()
        drive_in_thread(self._network, self._calls.flush(until(timeout)))

    def poll(self) -> None:
        """Run the callbacks of records that have an outcome. Every other call does that as well."""
        self._check_open()
        self._calls.run_callbacks()

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Waits, at most ``max_block``, if the topic is not known yet."""
        self._check_open()
        return drive_in_thread(self._network, self._calls.partitions_for(arguments.topic(topic), clock.now()))

    def close(self, timeout: Timeout = CLOSE_TIMEOUT) -> None:
        """Write all records, and close the connections. What is not written within ``timeout`` (seconds) fails.

        Raises the first failure that nothing has reported. Closing twice does no harm. If Ctrl-C interrupts it, the records are
        still being written, and ``flush()`` or another ``close()`` waits for them; ``close(0)`` does not.
        """
        network = self._network
        network.check_process()
        if network.shared.closed:
            return
        limit = arguments.milliseconds(timeout, round(CLOSE_TIMEOUT * 1000))
        try:
            drive_in_thread(network, network.closing(clock.now().mono + limit))
        except Exception:
            self._end()
            raise
        self._end()
        self._calls.raise_failure()

    def _end(self) -> None:
        self._network.shared.closed = True
        self._network.close(END_GRACE)
        self._calls.run_callbacks()
