"""Reads the batches of one partition in a fetch response: returns visible records, and moves the position past the others.

Owns the position inside the response, the skipping of control, aborted and already consumed records, and the rule that records
before a corrupt batch are returned before the error is raised. Must not know the fetch or the use of the records. Invariants: the
position only moves forward; a batch is decoded only when its records are read; after a corrupt batch each call raises the error
again, since only a seek can help. The attributes of ``PartitionReader`` are declared in ``reader.pxd``.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.ottla.records.batch import Batch, open_batch, pointer_to
else:
    from ottla.records.batch import Batch, open_batch, pointer_to

from typing import NamedTuple

from ottla.records import old_format
from ottla.records.batch import batch_at
from ottla.records.compression import DEFAULT_MAX_BATCH_BYTES
from ottla.records.header import ControlType, InvalidBatchError, iter_headers
from ottla.records.partition_records import PartitionRecords
from ottla.records.record import Origin, RecordIterator, keys_and_values
from ottla.types import IsolationLevel, TimestampType

COMPILED = cython.compiled


class PartitionReader:
    """Reads the batches that a broker sent for one partition, from ``fetch_offset`` on.

    ``aborted`` lists (producer id, first offset) of aborted transactions, from the Fetch response; it is used only with
    ``IsolationLevel.READ_COMMITTED``. ``max_batch_bytes`` limits the decompressed size of a batch.

    ``next_offset`` and ``next_leader_epoch`` are the position after the returned records. ``exhausted``: whether no more follow.
    ``bytes_read`` is the decompressed size of the returned records, with their lengths and without the headers of batches, as in
    Kafka's metric ``bytes-consumed-total``. For use by one thread.
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
        deserialize_nulls=False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.next_offset = fetch_offset
        self.bytes_read = 0
        self._epoch = -1
        self._source = memoryview(data)
        self._data = pointer_to(self._source)
        self._length = len(data)
        self._position = 0
        self._check_crcs = check_crcs
        self._committed_only = isolation_level == 1
        self._aborted = sorted([(first, producer_id) for producer_id, first in aborted], reverse=True)
        self._aborted_producers = set()
        self._max_batch_bytes = max_batch_bytes
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._deserialize_nulls = deserialize_nulls
        self._origin = None
        self._batch = None
        self._row = 0
        self._no_whole_batch = self._length > 0 and not self._whole_batch_ahead()

    @property
    def next_leader_epoch(self) -> int | None:
        """The leader epoch of the last batch that was passed; ``None`` before the first one, and if it is not known."""
        return None if self._epoch < 0 else self._epoch

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left: no record, no batch to skip, no error to raise."""
        return self._batch is None and not self._no_whole_batch and not self._whole_batch_ahead()

    def read(self, max_records: int) -> PartitionRecords | None:
        """The next records, at most ``max_records``; ``None`` if there are none, though the position may have moved.

        Raises ``CorruptRecordError`` with topic, partition and offset at a damaged batch, after the records before it.
        """
        batch: Batch
        start: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        left: cython.Py_ssize_t = max_records
        segments = []
        while left > 0:
            if self._batch is None:
                try:
                    if not self._advance():
                        break
                except InvalidBatchError as error:
                    if segments:
                        break
                    raise self._located(error) from error.__cause__
            batch = self._batch
            start = self._row
            stop = batch.count if batch.count - start <= left else start + left
            segments.append((batch, start, stop))
            left -= stop - start
            # Records are adjacent, and their headers are at their ends.
            self.bytes_read += batch.fields[stop * 7 - 2] + batch.fields[stop * 7 - 1]
            if start > 0:
                self.bytes_read -= batch.fields[start * 7 - 2] + batch.fields[start * 7 - 1]
            if stop == batch.count:
                self._leave(batch)
                self._batch = None
            else:
                self._row = stop
                self.next_offset = batch.base_offset + batch.fields[(stop - 1) * 7] + 1
                self._epoch = batch.leader_epoch
        if not segments:
            return None
        return PartitionRecords(self.topic, self.partition, segments, max_records - left, self.next_offset, self.next_leader_epoch)

    def _leave(self, batch: Batch):
        """Move the position past a batch, including offsets that compaction removed from its end."""
        self.next_offset = batch.last_offset + 1
        self._epoch = batch.leader_epoch

    def _whole_batch_ahead(self) -> bool:
        left: cython.longlong = self._length - self._position
        if left < 12:
            return False
        return int.from_bytes(self._source[self._position + 8 : self._position + 12], "big", signed=True) <= left - 12

    def _advance(self):
        """Index the next batch with visible records; return False at the end of the data."""
        batch: Batch
        size: cython.Py_ssize_t
        if self._no_whole_batch:
            raise InvalidBatchError(
                f"the response has {self._length} bytes but no complete batch",
                hint="its length or the log of the broker is damaged: brokers send at least one whole batch since Kafka 0.10.1",
            )
        while True:
            if self._length - self._position > 16 and self._data[self._position + 16] < 2:
                made = old_format.batch_of(
                    self._source, self._position, check_crcs=self._check_crcs, max_bytes=self._max_batch_bytes
                )
                if made is None:
                    return False
                batch, size = batch_at(made[0], 0), made[1] - self._position
            else:
                batch = open_batch(self._source, self._data, self._length, self._position)
                if batch is None:
                    return False
                size = batch.size
            if batch.last_offset >= self.next_offset:
                if self._check_crcs:
                    batch.require_crc()
                if not self._hidden(batch):
                    batch.origin = self._origin_of(batch)
                    batch.index(self._max_batch_bytes)
                    self._row = batch.first_from(self.next_offset)
                    if self._row < batch.count:
                        self._batch = batch
                        self._position += size
                        return True
                self._leave(batch)
            self._position += size

    def _origin_of(self, batch: Batch):
        stamp: cython.int = 1 if batch.attributes & 0x08 else 0
        if self._origin is None or self._origin_epoch != batch.leader_epoch or self._origin_stamp != stamp:
            self._origin = Origin(
                self.topic,
                self.partition,
                None if batch.leader_epoch < 0 else batch.leader_epoch,
                TimestampType.LOG_APPEND_TIME if stamp else TimestampType.CREATE_TIME,
                self._key_deserializer,
                self._value_deserializer,
                self._deserialize_nulls,
            )
            self._origin_epoch = batch.leader_epoch
            self._origin_stamp = stamp
        return self._origin

    def _hidden(self, batch: Batch):
        """Whether the batch is not delivered: a control batch, or one of an aborted transaction."""
        control: cython.bint = batch.attributes & 0x20
        if not self._committed_only:
            return control
        while self._aborted and self._aborted[len(self._aborted) - 1][0] <= batch.last_offset:
            self._aborted_producers.add(self._aborted.pop()[1])
        if control:
            batch.index(self._max_batch_bytes)
            if batch.marker() is ControlType.ABORT:
                self._aborted_producers.discard(batch.producer_id)
            return True
        return batch.attributes & 0x10 and batch.producer_id in self._aborted_producers

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
    """A record of a log, with the header of its batch."""

    header: object
    offset: int
    timestamp: int
    key: object
    value: object
    headers: tuple


def iter_records(data, *, max_batch_bytes=DEFAULT_MAX_BATCH_BYTES):
    """All records of all complete batches in ``data``, including control records: for tools.

    A partial last batch is left out. Raises ``CorruptRecordError`` at a damaged batch, after the records before it.
    """
    origin = Origin("", 0)
    for header, batch in _iter_batches(data, max_batch_bytes):
        batch.origin = origin
        for record in RecordIterator([(batch, 0, batch.count)]):
            yield StoredRecord(header, record.offset, record.timestamp, record.key, record.value, record.headers)


def iter_entries(data, *, max_batch_bytes=DEFAULT_MAX_BATCH_BYTES):
    """For each complete batch in ``data``, including control batches, its header and a list of its records' keys and values.

    For loading a compacted log, such as a coordinator's. Ends and raises as ``iter_records``.
    """
    for header, batch in _iter_batches(data, max_batch_bytes):
        yield header, keys_and_values(batch)


def _iter_batches(data, max_batch_bytes):
    for position, header in iter_headers(data):
        batch = batch_at(data, position)
        batch.require_crc()
        batch.index(max_batch_bytes)
        yield header, batch
