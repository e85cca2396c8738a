"""The outcome of one call of ``send_arrow``, and what that call waits for.

Owns the batches of the call, and where their rows were written. Must not know Arrow, requests or threads. Invariant: a batch counts
as soon as it was accepted, whatever happens to the call after that.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from ottla.errors import OttlaError, TransactionAbortedError
from ottla.records.accumulator import RecordAccumulator
from ottla.records.batch_states import OUTCOMES
from ottla.records.producer_queues import ProducerBatch


class MissingPartitions(NamedTuple):
    """Yielded by ``RowEncoder.steps``: it goes on when these pairs of a topic and a partition exist.

    ``since`` is monotonic milliseconds: the source of the rows may have worked for a long time before. ``rows``: the first row for
    each pair.
    """

    since: int
    rows: dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """Yielded by ``RowEncoder.steps``: it goes on when ``is_met``, which can change when the accumulator calls its waiters.

    ``since`` is monotonic milliseconds, ``size`` and ``held`` are bytes: what it waits for, and the memory of the batches that it
    fills. ``delivery`` has those that it has sent.
    """

    since: int
    size: int
    delivery: ArrowDelivery
    held: int

    def is_met(self) -> bool:
        """Whether there is room, or it would wait in vain: then it has to send what it holds."""
        return self.delivery.has_room(self.size) or (self.held > 0 and self.delivery.waits_in_vain(self.held))


class WrittenRows(NamedTuple):
    """Where the rows of a call were written in one partition.

    ``last_offset - first_offset + 1`` is more than ``rows`` if records of others are between them. The offsets are -1 if the
    broker recognized a batch that is sent again and did not say where it was written.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int


class ArrowDelivery:
    """The future outcome of all rows of a call."""

    def __init__(self, accumulator: RecordAccumulator) -> None:
        self._accumulator = accumulator
        self.batches: list[ProducerBatch] = []
        """The batches that were accepted, in the order of their rows in each partition."""
        self.count = 0
        """The number of their rows."""
        self._settled = 0
        """So many batches, of the first ones, are known to have an outcome."""

    def __repr__(self) -> str:
        return f"<ArrowDelivery of {self.count} rows in {len(self.batches)} batches>"

    def result(self, timeout: float | timedelta | None = None) -> list[WrittenRows]:
        """Wait until all rows have an outcome; return where they were written, or raise the first error.

        ``timeout`` is in seconds; ``None``: as long as it takes. Raises ``OttlaTimeoutError`` after it; the rows may still be
        written then.
        """
        return self._accumulator.waits.rows(self, timeout)

    def __await__(self) -> Generator[Any, None, list[WrittenRows]]:
        return self._accumulator.waits.wait_for_rows(self)

    def add(self, batch: ProducerBatch) -> None:
        """Take in an accepted batch."""
        self.batches.append(batch)
        self.count += batch.count

    def pending(self) -> ProducerBatch | None:
        """A batch without an outcome, on whose waiters to wait; ``None`` if there is none. Any thread may call this."""
        place = self._settled
        while place < len(self.batches):
            for batch in _leaves(self.batches[place : place + 1]):
                if batch.state not in OUTCOMES:
                    return batch
            place += 1
            self._settled = place
        return None

    def memory_size(self) -> int:
        """The bytes of memory that the batches without an outcome take."""
        self.pending()
        return sum(batch.memory_size for batch in _leaves(self.batches[self._settled :]))

    def has_room(self, size: int) -> bool:
        """Whether so many bytes of memory are free."""
        return self._accumulator.has_room(size)

    def waits_in_vain(self, held: int) -> bool:
        """Whether no memory is going to be free, or only little, if the call does not send rows for which it has ``held`` bytes."""
        return not self._accumulator.incomplete or (2 * held >= self._accumulator.used and self.done())

    def done(self) -> bool:
        """Whether all batches have an outcome."""
        return self.pending() is None

    def error(self) -> OttlaError | None:
        """The first error, whose batches count as seen then: they are not logged. That a transaction has to be aborted follows from
        the error of another batch."""
        failed = [batch for batch in _leaves(self.batches) if batch.error is not None]
        for batch in failed:
            batch.seen = True
        causes = [batch.error for batch in failed if not isinstance(batch.error, TransactionAbortedError)]
        return causes[0] if causes else failed[0].error if failed else None

    def written(self) -> list[WrittenRows]:
        """Where the acknowledged rows were written, by topic and partition."""
        found: dict[tuple[str, int], WrittenRows] = {}
        for batch in _leaves(self.batches):
            if batch.error is None and batch.state in OUTCOMES:
                key = batch.queue.tp
                found[key] = _joined(found.get(key), _written(batch, key))
        return [found[key] for key in sorted(found)]


def _leaves(batches: list[ProducerBatch]) -> Iterator[ProducerBatch]:
    """The batches, with their parts in place of those that were divided."""
    for batch in batches:
        if batch.parts is None:
            yield batch
        else:
            yield from _leaves(batch.parts)


def _written(batch: ProducerBatch, key: tuple[str, int]) -> WrittenRows:
    offset = batch.base_offset
    if offset is None:
        return WrittenRows(*key, -1, -1, batch.count)
    return WrittenRows(*key, offset, offset + batch.count - 1, batch.count)


def _joined(before: WrittenRows | None, more: WrittenRows) -> WrittenRows:
    if before is None:
        return more
    rows = before.rows + more.rows
    if before.first_offset < 0 or more.first_offset < 0:
        return before._replace(first_offset=-1, last_offset=-1, rows=rows)
    return before._replace(last_offset=more.last_offset, rows=rows)
