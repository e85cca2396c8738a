"""One fetched partition response, read batch by batch: what is visible comes out, the position moves past the rest.

Owns the position inside the response, the skipping of control, aborted and already consumed records, and the rule that what
precedes a corrupt batch is handed out before the error. Must not know who fetched it or what becomes of the records.
Invariants: the position only moves forward; a batch is decoded only when its records are asked for; after a corrupt batch
every call raises the same error again, since only a seek can help.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython

from typing import NamedTuple

from ottla.records.batch import control_marker, index_batch, require_crc
from ottla.records.compression import DEFAULT_MAX_BATCH_BYTES
from ottla.records.fetched import PartitionRecords
from ottla.records.header import LENGTH_OVERHEAD, ControlType, InvalidBatchError, iter_headers, read_header
from ottla.records.record import Origin, RecordIterator
from ottla.types import IsolationLevel

COMPILED = cython.compiled


class PartitionReader:
    """Reads the batches that a broker sent for one partition, from ``fetch_offset`` on.

    ``aborted`` lists (producer id, first offset) of aborted transactions as the Fetch response does; it matters only with
    ``IsolationLevel.READ_COMMITTED``. No batch may inflate beyond ``max_batch_bytes``.

    ``next_offset`` and ``next_leader_epoch`` are the position after what was handed out; ``exhausted`` says that no more will
    come. Used by one thread.
    """

    def __init__(
        self,
        data,
        *,
        topic,
        partition,
        fetch_offset,
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        aborted=(),
        check_crcs=True,
        max_batch_bytes=DEFAULT_MAX_BATCH_BYTES,
        key_deserializer=None,
        value_deserializer=None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.next_offset = fetch_offset
        self.next_leader_epoch = None
        self._data = data
        self._position = 0
        self._committed_only = isolation_level == IsolationLevel.READ_COMMITTED
        self._aborted = sorted(((first, producer_id) for producer_id, first in aborted), reverse=True)
        self._aborted_producers = set()
        self._check_crcs = check_crcs
        self._max_batch_bytes = max_batch_bytes
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._origin = None
        self._header = None
        self._index = None
        self._row = 0
        self._empty = bool(data) and not self._whole_batch_ahead()

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left: no record, no batch to skip, no error to raise."""
        return self._index is None and not self._empty and not self._whole_batch_ahead()

    def read(self, max_records: int) -> PartitionRecords | None:
        """The next records, at most ``max_records``; ``None`` where there are none, though the position may have moved.

        Raises ``CorruptRecordError`` naming topic, partition and offset at a damaged batch, once all before it is handed out.
        """
        segments = []
        wanted = max_records
        while wanted > 0:
            if self._index is None:
                try:
                    if not self._advance():
                        break
                except InvalidBatchError as error:
                    if segments:
                        break
                    raise self._located(error) from error.__cause__
            index = self._index
            start = self._row
            stop = min(index.count, start + wanted)
            segments.append((index, start, stop))
            wanted -= stop - start
            self._hand_out(index, stop)
        if not segments:
            return None
        return PartitionRecords(
            self.topic, self.partition, segments, max_records - wanted, self.next_offset, self.next_leader_epoch
        )

    def _hand_out(self, index, stop: int) -> None:
        """Move the position behind row ``stop - 1``."""
        if stop == index.count:
            self._leave(self._header)
            self._index = self._header = None
        else:
            self._row = stop
            self.next_offset = index.offset(stop - 1) + 1
            self.next_leader_epoch = self._origin.leader_epoch

    def _leave(self, header) -> None:
        self.next_offset = header.next_offset
        self.next_leader_epoch = header.leader_epoch if header.leader_epoch >= 0 else None

    def _whole_batch_ahead(self) -> bool:
        left = len(self._data) - self._position
        if left < LENGTH_OVERHEAD:
            return False
        length = int.from_bytes(self._data[self._position + 8 : self._position + 12], "big", signed=True)
        return LENGTH_OVERHEAD + length <= left

    def _advance(self) -> bool:
        """Index the next batch that has visible records; False at the end of the data."""
        if self._empty:
            raise InvalidBatchError(
                f"the response holds {len(self._data)} bytes but no whole batch",
                hint="raise max.partition.fetch.bytes if the broker cuts batches short",
            )
        while self._whole_batch_ahead():
            position = self._position
            header = read_header(self._data, position)
            if header.next_offset > self.next_offset:
                if self._check_crcs:
                    require_crc(self._data, position, header)
                if not self._hidden(header, position) and self._open(header, position):
                    return True
                self._leave(header)
            self._position = position + header.size
        return False

    def _open(self, header, position: int) -> bool:
        """Index a batch; False where all its records lie before the position."""
        epoch = header.leader_epoch if header.leader_epoch >= 0 else None
        timestamp_type = header.timestamp_type
        if self._origin is None or not self._origin.is_of(epoch, timestamp_type):
            self._origin = Origin(
                self.topic, self.partition, epoch, timestamp_type, self._key_deserializer, self._value_deserializer
            )
        index = index_batch(self._data, position, header, self._max_batch_bytes, self._origin)
        row = index.first_from(self.next_offset)
        if row == index.count:
            return False
        self._index, self._header, self._row = index, header, row
        self._position = position + header.size
        return True

    def _hidden(self, header, position: int) -> bool:
        """Whether the application never sees this batch: a control batch, or one of an aborted transaction."""
        if not self._committed_only:
            return header.is_control
        while self._aborted and self._aborted[-1][0] <= header.last_offset:
            self._aborted_producers.add(self._aborted.pop()[1])
        if header.is_control:
            if control_marker(self._data, position) is ControlType.ABORT:
                self._aborted_producers.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._aborted_producers

    def _located(self, error: InvalidBatchError) -> InvalidBatchError:
        return InvalidBatchError(
            f"{self.topic}-{self.partition} at offset {self.next_offset}: {Exception.__str__(error)}",
            code=error.code,
            hint=error.hint or "seek() past the batch to read on",
            topic=self.topic,
            partition=self.partition,
            offset=self.next_offset,
        )


class StoredRecord(NamedTuple):
    """A record as it lies in a log, with the header of its batch."""

    header: object
    offset: int
    timestamp: int
    key: object
    value: object
    headers: tuple


def iter_records(data, *, max_batch_bytes=DEFAULT_MAX_BATCH_BYTES):
    """Every record of every whole batch in ``data``, control records too: for tools, and for loading a log.

    A partial last batch ends it. Raises ``CorruptRecordError`` at a damaged batch, after the records before it.
    """
    origin = Origin("", 0)
    for position, header in iter_headers(data):
        require_crc(data, position, header)
        index = index_batch(data, position, header, max_batch_bytes, origin)
        for record in RecordIterator([(index, 0, index.count)]):
            yield StoredRecord(header, record.offset, record.timestamp, record.key, record.value, record.headers)
