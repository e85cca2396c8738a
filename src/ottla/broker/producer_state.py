"""The producer state of a partition: it detects duplicate batches and tracks open transactions.

Owns sequence checks, the open transactions, and the format of ``.snapshot`` files. Must not know logs or connections. Invariants:
for one producer id and epoch, accepted batches have consecutive sequence numbers, without gaps and duplicates; a producer has one
open transaction at most, and is not removed while it is open.

Source: KIP-98, KIP-360 and KIP-890; the snapshot's layout is that of Apache Kafka 4.3 (version 1).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import crc32c

from ottla.coordinator.effects import ApiError
from ottla.protocol import ErrorCode
from ottla.records import BatchHeader

BATCHES_TO_RETAIN = 5
"""Batches of a producer whose duplicates are detected: as many as a client may have in flight."""

_MAX_SEQUENCE = 2**31 - 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_NO_TRANSACTION = _NO_SEQUENCE = _NO_OFFSET = _NO_COORDINATOR = -1


class BatchMetadata(NamedTuple):
    """An accepted batch."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction whose marker is in the log, at ``last_offset``."""

    producer_id: int
    first_offset: int
    last_offset: int


class ProducerStateEntry:
    """The state of one producer in one partition: its epoch and its latest batches, oldest first (Kafka's class of this name).

    There are no batches after a marker with a new epoch. ``coordinator_epoch`` is that of the last marker.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_seen")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_TO_RETAIN)
        self.last_seen = -1
        self.coordinator_epoch = _NO_COORDINATOR

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record of this epoch, -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else _NO_SEQUENCE


class ProducerStateManager:
    """The producers of one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerStateEntry] = {}
        self._open: dict[int, int] = {}  # in the order of the offsets, as offsets only grow

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def entries(self) -> Mapping[int, ProducerStateEntry]:
        """Producer id -> state."""
        return self._producers

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest open transaction; ``None`` if there is none."""
        return next(iter(self._open.values()), None)

    def transaction_start(self, producer_id: int) -> int | None:
        """Return the first offset of a producer's open transaction; ``None`` if it has none."""
        return self._open.get(producer_id)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has an open transaction that it began with this epoch."""
        return producer_id in self._open and self._producers[producer_id].epoch == epoch

    def is_fenced(self, producer_id: int, epoch: int) -> bool:
        """Whether a newer epoch of the producer has written."""
        known = self._producers.get(producer_id)
        return known is not None and epoch < known.epoch

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise ``ApiError`` if a newer epoch has fenced a producer: INVALID_PRODUCER_EPOCH."""
        if self.is_fenced(producer_id, epoch):
            current = self._producers[producer_id].epoch
            raise ApiError(ErrorCode.invalid_producer_epoch, f"producer {producer_id} has epoch {current}, the batch says {epoch}")

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Raise ``ApiError`` if a newer epoch of the producer or of the coordinator has fenced a marker."""
        self.check_epoch(producer_id, epoch)
        known = self._producers.get(producer_id)
        if known is not None and coordinator_epoch < known.coordinator_epoch:
            raise ApiError(
                ErrorCode.transaction_coordinator_fenced,
                f"producer {producer_id} has a marker of epoch {known.coordinator_epoch}, this one has {coordinator_epoch}",
            )

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the earlier batch that this one duplicates, or ``None`` if it is new and in order.

        Raises ``ApiError``: INVALID_PRODUCER_EPOCH for an older epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap, INVALID_TXN_STATE
        for a batch outside of the transaction that its producer has open. A producer without state may begin with any sequence
        number.
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

    def append(self, header: BatchHeader, base_offset: int, now: int) -> None:
        """Add a batch that is in the log, live and in recovery (``now``: ms since 1970). Batches are added nowhere else."""
        producer = self._entry_of_epoch(header.producer_id, header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        producer.batches.append(
            BatchMetadata(header.base_sequence, header.last_sequence, base_offset, last_offset, header.max_timestamp)
        )
        producer.last_seen = now
        if header.is_transactional:
            self._open.setdefault(header.producer_id, base_offset)

    def complete_transaction(
        self, header: BatchHeader, offset: int, coordinator_epoch: int, now: int
    ) -> CompletedTransaction | None:
        """Add a marker that is in the log at ``offset``; return the transaction that it ends, if one was open."""
        producer = self._entry_of_epoch(header.producer_id, header.producer_epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_seen = now
        first_offset = self._open.pop(header.producer_id, None)
        return None if first_offset is None else CompletedTransaction(header.producer_id, first_offset, offset)

    def _entry_of_epoch(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            fresh = self._producers[producer_id] = ProducerStateEntry(epoch)
            fresh.coordinator_epoch = producer.coordinator_epoch if producer is not None else _NO_COORDINATOR
            return fresh
        return producer

    def remove_expired(self, before: int) -> None:
        """Remove producers that were last seen before a time (ms since 1970), but none with an open transaction."""
        silent = [one for one, producer in self._producers.items() if producer.last_seen < before and one not in self._open]
        for producer_id in silent:
            del self._producers[producer_id]

    def snapshot(self) -> bytes:
        """Return the content of a ``.snapshot`` file: each producer with its latest batch."""
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
    def from_snapshot(cls, content: bytes, before: int = 2**63 - 1) -> ProducerStateManager | None:
        """Parse the ``.snapshot`` file of the offset ``before``; return ``None`` if it is damaged or of another log."""
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
            producer = producers._producers[producer_id] = ProducerStateEntry(epoch)
            if last_offset != _NO_OFFSET:
                first = (last_sequence - delta) & _MAX_SEQUENCE
                producer.batches.append(BatchMetadata(first, last_sequence, last_offset - delta, last_offset, timestamp))
            producer.last_seen = timestamp
            producer.coordinator_epoch = coordinator_epoch
            if first_offset != _NO_TRANSACTION:
                began[producer_id] = first_offset
        producers._open = dict(sorted(began.items(), key=lambda item: item[1]))
        return producers


BLOCK = 1000


class ProducerIdManager:
    """Assigns producer ids, from blocks of a thousand. ``reserve`` stores a new limit before any id below it is used; it may raise
    ``ApiError``."""

    def __init__(self, first: int, reserve: Callable[[int], None]) -> None:
        self._next = self.limit = first
        self._reserve = reserve

    def allocate(self) -> int:
        """Return an id that was never assigned."""
        if self._next == self.limit:
            self._reserve(self.limit + BLOCK)
            self.limit += BLOCK
        self._next += 1
        return self._next - 1
