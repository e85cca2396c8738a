"""What a partition remembers of idempotent producers, so that what is sent twice is written once.

Owns sequence checks and the format of ``.snapshot`` files. Must not know logs or connections. Invariant: for one producer id
and epoch, the batches that were accepted have consecutive sequence numbers, without a gap and without a repetition.

Source: KIP-98 and KIP-360; the snapshot's layout is that of Apache Kafka 4.3 (version 1).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import crc32c

from ottla.broker.refusal import Refusal
from ottla.protocol import ErrorCode
from ottla.records import BatchHeader

REMEMBERED = 5
"""Batches of a producer whose repetition is recognised: as many as a client may have in flight."""

_MAX_SEQUENCE = 2**31 - 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_NO_TRANSACTION = -1


class BatchStamp(NamedTuple):
    """A batch that was accepted."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Producer:
    """One producer in one partition: its epoch and its latest batches, oldest first."""

    __slots__ = ("batches", "epoch", "last_seen")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[BatchStamp] = deque(maxlen=REMEMBERED)
        self.last_seen = -1


class Producers:
    """The producers of one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def known(self) -> Mapping[int, Producer]:
        """Producer id -> what is remembered."""
        return self._producers

    def check(self, header: BatchHeader) -> BatchStamp | None:
        """The earlier batch that this one repeats, or ``None`` where it is new and in order.

        Raises ``Refusal``: INVALID_PRODUCER_EPOCH for an older epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap. A producer that
        is not remembered may begin with any sequence number.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            return None
        if header.producer_epoch < known.epoch:
            raise Refusal(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {known.epoch}, the batch says {header.producer_epoch}",
            )
        if header.producer_epoch > known.epoch:
            expected = 0
        else:
            for stamp in known.batches:
                if (stamp.first_sequence, stamp.last_sequence) == (header.base_sequence, header.last_sequence):
                    return stamp
            expected = (known.batches[-1].last_sequence + 1) & _MAX_SEQUENCE
        if header.base_sequence != expected:
            raise Refusal(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, expected was {expected}",
            )
        return None

    def record(self, header: BatchHeader, base_offset: int, now: int) -> None:
        """Take note of a batch that is in the log: the only writer, live and in recovery (``now``: ms since 1970)."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = Producer(header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        producer.batches.append(
            BatchStamp(header.base_sequence, header.last_sequence, base_offset, last_offset, header.max_timestamp)
        )
        producer.last_seen = now

    def expire(self, before: int) -> None:
        """Forget producers that were last seen before a time (ms since 1970)."""
        for producer_id in [one for one, producer in self._producers.items() if producer.last_seen < before]:
            del self._producers[producer_id]

    def snapshot(self) -> bytes:
        """As a ``.snapshot`` file holds it: of each producer its latest batch."""
        entries = [_SNAPSHOT_COUNT.pack(len(self._producers))]
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1]
            entries.append(
                _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.last_offset - last.base_offset,
                    producer.last_seen,
                    -1,
                    _NO_TRANSACTION,
                )
            )
        body = b"".join(entries)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c.crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, content: bytes) -> Producers | None:
        """What a ``.snapshot`` file says, or ``None`` where it is damaged."""
        head = _SNAPSHOT_HEAD.size
        if len(content) < head + _SNAPSHOT_COUNT.size:
            return None
        version, crc = _SNAPSHOT_HEAD.unpack_from(content)
        (count,) = _SNAPSHOT_COUNT.unpack_from(content, head)
        entries = content[head + _SNAPSHOT_COUNT.size :]
        if version != _SNAPSHOT_VERSION or crc32c.crc32c(content[head:]) != crc or len(entries) != count * _SNAPSHOT_ENTRY.size:
            return None
        producers = cls()
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, _ in _SNAPSHOT_ENTRY.iter_unpack(entries):
            producer = producers._producers[producer_id] = Producer(epoch)
            first = (last_sequence - delta) & _MAX_SEQUENCE
            producer.batches.append(BatchStamp(first, last_sequence, last_offset - delta, last_offset, timestamp))
            producer.last_seen = timestamp
        return producers
