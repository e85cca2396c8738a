"""What a partition remembers of producers, so that what is sent twice is written once and open transactions are known.

Owns sequence checks, which transactions are open, and the format of ``.snapshot`` files. Must not know logs or connections.
Invariants: for one producer id and epoch, the batches that were accepted have consecutive sequence numbers, without a gap and
without a repetition; a producer has one open transaction at most, and is not forgotten while it has.

Source: KIP-98, KIP-360 and KIP-890; the snapshot's layout is that of Apache Kafka 4.3 (version 1).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import crc32c

from ottla.coordinator.api_error import ApiError
from ottla.protocol import ErrorCode
from ottla.records import BatchHeader

REMEMBERED = 5
"""Batches of a producer whose repetition is recognised: as many as a client may have in flight."""

_MAX_SEQUENCE = 2**31 - 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_NO_TRANSACTION = _NO_SEQUENCE = _NO_OFFSET = _NO_COORDINATOR = -1


class BatchStamp(NamedTuple):
    """A batch that was accepted."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class EndedTransaction(NamedTuple):
    """A transaction whose marker is in the log, at ``last_offset``."""

    producer_id: int
    first_offset: int
    last_offset: int


class Producer:
    """One producer in one partition: its epoch and its latest batches, oldest first.

    There are no batches where a marker has brought a new epoch. ``coordinator_epoch`` is that of the last marker.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_seen")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[BatchStamp] = deque(maxlen=REMEMBERED)
        self.last_seen = -1
        self.coordinator_epoch = _NO_COORDINATOR

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record of this epoch, -1 where there is none."""
        return self.batches[-1].last_sequence if self.batches else _NO_SEQUENCE


class Producers:
    """The producers of one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}  # in the order of the offsets, as offsets only grow

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def known(self) -> Mapping[int, Producer]:
        """Producer id -> what is remembered."""
        return self._producers

    @property
    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins; ``None`` where there is none."""
        return next(iter(self._open.values()), None)

    def open_since(self, producer_id: int) -> int | None:
        """Where the open transaction of a producer begins; ``None`` where it has none."""
        return self._open.get(producer_id)

    def is_writing(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has a transaction open that it began with this very epoch."""
        return producer_id in self._open and self._producers[producer_id].epoch == epoch

    def is_fenced(self, producer_id: int, epoch: int) -> bool:
        """Whether a newer epoch of the producer has written."""
        known = self._producers.get(producer_id)
        return known is not None and epoch < known.epoch

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Whether a producer may still write; raises ``ApiError``: INVALID_PRODUCER_EPOCH where a newer one has taken its place."""
        if self.is_fenced(producer_id, epoch):
            current = self._producers[producer_id].epoch
            raise ApiError(ErrorCode.invalid_producer_epoch, f"producer {producer_id} has epoch {current}, the batch says {epoch}")

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Whether a transaction may be ended; raises ``ApiError`` for an older producer or an older coordinator."""
        self.check_epoch(producer_id, epoch)
        known = self._producers.get(producer_id)
        if known is not None and coordinator_epoch < known.coordinator_epoch:
            raise ApiError(
                ErrorCode.transaction_coordinator_fenced,
                f"producer {producer_id} has a marker of epoch {known.coordinator_epoch}, this one has {coordinator_epoch}",
            )

    def check(self, header: BatchHeader) -> BatchStamp | None:
        """The earlier batch that this one repeats, or ``None`` where it is new and in order.

        Raises ``ApiError``: INVALID_PRODUCER_EPOCH for an older epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap,
        INVALID_TXN_STATE for a batch outside of the transaction that its producer has open. A producer that is not remembered
        may begin with any sequence number.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            return None
        self.check_epoch(header.producer_id, header.producer_epoch)
        if header.producer_epoch > known.epoch:
            expected = 0
        else:
            for stamp in known.batches:
                if (stamp.first_sequence, stamp.last_sequence) == (header.base_sequence, header.last_sequence):
                    return stamp
            expected = (known.last_sequence + 1) & _MAX_SEQUENCE
        if header.producer_id in self._open and not header.is_transactional:
            raise ApiError(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} has a transaction open, the batch does not belong to it",
            )
        if header.base_sequence != expected:
            raise ApiError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, expected was {expected}",
            )
        return None

    def record(self, header: BatchHeader, base_offset: int, now: int) -> None:
        """Take note of a batch that is in the log: the only writer, live and in recovery (``now``: ms since 1970)."""
        producer = self._of_epoch(header.producer_id, header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        producer.batches.append(
            BatchStamp(header.base_sequence, header.last_sequence, base_offset, last_offset, header.max_timestamp)
        )
        producer.last_seen = now
        if header.is_transactional:
            self._open.setdefault(header.producer_id, base_offset)

    def end(self, header: BatchHeader, offset: int, coordinator_epoch: int, now: int) -> EndedTransaction | None:
        """Take note of a marker that is in the log at ``offset``; returns the transaction that it ends, if one was open."""
        producer = self._of_epoch(header.producer_id, header.producer_epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_seen = now
        first_offset = self._open.pop(header.producer_id, None)
        return None if first_offset is None else EndedTransaction(header.producer_id, first_offset, offset)

    def _of_epoch(self, producer_id: int, epoch: int) -> Producer:
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            fresh = self._producers[producer_id] = Producer(epoch)
            fresh.coordinator_epoch = producer.coordinator_epoch if producer is not None else _NO_COORDINATOR
            return fresh
        return producer

    def expire(self, before: int) -> None:
        """Forget producers that were last seen before a time (ms since 1970), but none with an open transaction."""
        silent = [one for one, producer in self._producers.items() if producer.last_seen < before and one not in self._open]
        for producer_id in silent:
            del self._producers[producer_id]

    def snapshot(self) -> bytes:
        """As a ``.snapshot`` file holds it: of each producer its latest batch."""
        entries = [_SNAPSHOT_COUNT.pack(len(self._producers))]
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1] if producer.batches else None
            entries.append(
                _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    producer.last_sequence,
                    _NO_OFFSET if last is None else last.last_offset,
                    0 if last is None else last.last_offset - last.base_offset,
                    producer.last_seen,
                    producer.coordinator_epoch,
                    self._open.get(producer_id, _NO_TRANSACTION),
                )
            )
        body = b"".join(entries)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c.crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, content: bytes, before: int = 2**63 - 1) -> Producers | None:
        """What the ``.snapshot`` file of the offset ``before`` says, or ``None`` where it is damaged, or one of another log."""
        head = _SNAPSHOT_HEAD.size
        if len(content) < head + _SNAPSHOT_COUNT.size:
            return None
        version, crc = _SNAPSHOT_HEAD.unpack_from(content)
        (count,) = _SNAPSHOT_COUNT.unpack_from(content, head)
        entries = content[head + _SNAPSHOT_COUNT.size :]
        if version != _SNAPSHOT_VERSION or crc32c.crc32c(content[head:]) != crc or len(entries) != count * _SNAPSHOT_ENTRY.size:
            return None
        producers = cls()
        began: dict[int, int] = {}
        for row in _SNAPSHOT_ENTRY.iter_unpack(entries):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = row
            if max(last_offset, first_offset) >= before:
                return None
            producer = producers._producers[producer_id] = Producer(epoch)
            if last_offset != _NO_OFFSET:
                first = (last_sequence - delta) & _MAX_SEQUENCE
                producer.batches.append(BatchStamp(first, last_sequence, last_offset - delta, last_offset, timestamp))
            producer.last_seen = timestamp
            producer.coordinator_epoch = coordinator_epoch
            if first_offset != _NO_TRANSACTION:
                began[producer_id] = first_offset
        producers._open = dict(sorted(began.items(), key=lambda item: item[1]))
        return producers


BLOCK = 1000


class ProducerIds:
    """Gives out producer ids. ``reserve`` stores a new limit before any id below it is used; it may raise ``ApiError``."""

    def __init__(self, first: int, reserve: Callable[[int], None]) -> None:
        self._next = self.limit = first
        self._reserve = reserve

    def allocate(self) -> int:
        """An id that was never given out."""
        if self._next == self.limit:
            self._reserve(self.limit + BLOCK)
            self.limit += BLOCK
        self._next += 1
        return self._next - 1
