"""``Record``, the application's view of a record, and the iterators that create records from an indexed batch.

Owns the record object, its lazy headers and deserialized values. Must not know fetches or positions. Invariants: a record has
copies of its bytes and does not refer to the buffer; creating one never fails; a user's deserializer runs at the first access to
``key`` or ``value``, once unless it raises; a pickled record needs no deserializer.
"""

from __future__ import annotations

import operator

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.ottla.records.batch import Batch

from types import GenericAlias

from ottla.errors import RecordDeserializationError
from ottla.types import TimestampType

COMPILED = cython.compiled


class Origin:
    """The common properties of all records of one batch."""

    __slots__ = (
        "deserialize_nulls",
        "key_deserializer",
        "leader_epoch",
        "partition",
        "timestamp_type",
        "topic",
        "value_deserializer",
    )

    def __init__(
        self,
        topic,
        partition,
        leader_epoch=None,
        timestamp_type=TimestampType.CREATE_TIME,
        key_deserializer=None,
        value_deserializer=None,
        deserialize_nulls=False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.timestamp_type = timestamp_type
        self.key_deserializer = key_deserializer
        self.value_deserializer = value_deserializer
        self.deserialize_nulls = deserialize_nulls


_NONE = object()
"""Stands for a deserializer's result ``None``, where ``None`` means that it has not run."""


@cython.final
@cython.freelist(256)
@cython.nonecheck(True)  # Record.__new__(Record) has no origin: an AttributeError, not a crash
@cython.cclass
class Record:
    """One record of one partition.

    ``topic``, ``partition``, ``offset``; ``timestamp`` in milliseconds since 1970, and its ``timestamp_type``; ``key`` and
    ``value``, bytes or the results of deserializers, ``None`` for null, such as the value of a tombstone; ``headers``, a tuple of
    (name, bytes or ``None``) in the order in which they were sent; ``leader_epoch`` of the batch, ``None`` if unknown.

    ``key`` and ``value`` raise ``RecordDeserializationError`` if a deserializer raises. Records with the same content are equal. A
    record is immutable, so ``copy.copy()`` returns the record itself. ``pickle`` and ``copy.deepcopy()`` run the deserializers
    first: the copy has their results instead of the bytes, so that the process that loads it needs no deserializer. For the same
    reason the constructor accepts any object as ``key`` and ``value``. The class cannot be subclassed.
    """

    __slots__ = ("_headers", "_key", "_key_object", "_offset", "_origin", "_timestamp", "_value", "_value_object")

    _origin: Origin
    _offset: cython.longlong
    _timestamp: cython.longlong
    _key: object
    _value: object
    _headers: object
    _key_object: object
    _value_object: object

    def __init__(
        self,
        topic,
        partition,
        offset,
        key=None,
        value=None,
        *,
        headers=(),
        timestamp=-1,
        timestamp_type=TimestampType.CREATE_TIME,
        leader_epoch=None,
    ) -> None:
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a string, not {topic!r}")
        self._origin = Origin(
            topic,
            _integer(partition, "partition", 31),
            None if leader_epoch is None else _integer(leader_epoch, "leader_epoch", 31),
            TimestampType(timestamp_type),
        )
        self._offset = _integer(offset, "offset", 63)
        self._timestamp = _integer(timestamp, "timestamp", 63)
        self._key = key
        self._value = value
        self._headers = tuple(map(_header, headers))
        self._key_object = None
        self._value_object = None

    @classmethod
    def __class_getitem__(cls, types):
        """``Record[K, V]`` in annotations that are evaluated."""
        return GenericAlias(cls, types)

    @property
    def topic(self) -> str:
        return self._origin.topic

    @property
    def partition(self) -> int:
        return self._origin.partition

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def timestamp(self) -> int:
        return self._timestamp

    @property
    def timestamp_type(self):
        return self._origin.timestamp_type

    @property
    def leader_epoch(self):
        return self._origin.leader_epoch

    @property
    def key(self):
        if self._origin.key_deserializer is None or (self._key is None and not self._origin.deserialize_nulls):
            return self._key
        made = self._key_object
        if made is None:
            made = _deserialize(self, "key", self._origin.key_deserializer, self._key)
            self._key_object = _NONE if made is None else made
        return None if made is _NONE else made

    @property
    def value(self):
        if self._origin.value_deserializer is None or (self._value is None and not self._origin.deserialize_nulls):
            return self._value
        made = self._value_object
        if made is None:
            made = _deserialize(self, "value", self._origin.value_deserializer, self._value)
            self._value_object = _NONE if made is None else made
        return None if made is _NONE else made

    @property
    def headers(self):
        if not isinstance(self._headers, tuple):
            self._headers = decode_headers(self._headers)
        return self._headers

    def _content(self):
        origin: Origin = self._origin
        return (
            origin.topic,
            origin.partition,
            self._offset,
            self.key,
            self.value,
            self.headers,
            self._timestamp,
            origin.timestamp_type,
            origin.leader_epoch,
        )

    def __eq__(self, other) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        mine: Record = self
        theirs: Record = other
        return mine._content() == theirs._content()

    def __hash__(self) -> int:
        return hash((self._origin.topic, self._origin.partition, self._offset))

    def __repr__(self) -> str:
        epoch = "" if self._origin.leader_epoch is None else f", leader_epoch={self._origin.leader_epoch}"
        headers = f", headers={self.headers!r}" if self.headers else ""
        return (
            f"Record(topic={self._origin.topic!r}, partition={self._origin.partition}, offset={self._offset},"
            f" timestamp={self._timestamp}, timestamp_type={self._origin.timestamp_type.name},"
            f" key={self._key!r}, value={self._value!r}{headers}{epoch})"
        )

    def __copy__(self):
        return self

    def __reduce__(self):
        return _rebuild, self._content()


def _refuse_subclass(cls, **_options) -> None:
    raise TypeError("type 'ottla.records.record.Record' is not an acceptable base type")


if not cython.compiled:
    # Python refuses subclasses of the compiled class, which is final.
    Record.__init_subclass__ = classmethod(_refuse_subclass)


def _rebuild(topic, partition, offset, key, value, headers, timestamp, timestamp_type, leader_epoch) -> Record:
    return Record(
        topic,
        partition,
        offset,
        key,
        value,
        headers=headers,
        timestamp=timestamp,
        timestamp_type=timestamp_type,
        leader_epoch=leader_epoch,
    )


def _integer(value, name: str, bits: int) -> int:
    """The value as an integer of at most ``bits`` bits and a sign. Raises ``TypeError`` or ``ValueError``."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    number = operator.index(value)
    if not -(2**bits) <= number < 2**bits:
        raise ValueError(f"{name} does not fit into {bits + 1} bits: {number}")
    return number


def _header(header) -> tuple[str, bytes | None]:
    match header:
        case (str(name), bytes() | None as content):
            return name, content
    raise TypeError(f"a header is a pair of a string and bytes or None, not {header!r}")


def _deserialize(record, part: str, deserializer, raw):
    try:
        return deserializer(raw)
    except Exception as error:
        topic, partition, offset = record.topic, record.partition, record.offset
        message = f"{part} of {topic}-{partition} at offset {offset} cannot be deserialized: {error!r}"
        as_sent = _without_deserializers(record)
        raise RecordDeserializationError(message, topic, partition, offset, raw, part=part, record=as_sent) from error


def _without_deserializers(record: Record) -> Record:
    return Record(
        record.topic,
        record.partition,
        record.offset,
        record._key,
        record._value,
        headers=record.headers,
        timestamp=record.timestamp,
        timestamp_type=record.timestamp_type,
        leader_epoch=record.leader_epoch,
    )


def _varint(data: bytes, position: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7


def decode_headers(data: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a validated record. Invalid UTF-8 in a name is replaced by U+FFFD, as in Java."""
    count, position = _varint(data, 0)
    headers = []
    for _ in range(count):
        size, position = _varint(data, position)
        name = data[position : position + size].decode("utf-8", "replace")
        position += size
        size, position = _varint(data, position)
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[position : position + size]))
            position += size
    return tuple(headers)


@cython.final
@cython.cclass
class RecordIterator:
    """Creates the records of a list of (batch, first row, row after the last), one at a time."""

    _segments: object
    _batch: Batch
    _origin: Origin
    _row: cython.Py_ssize_t
    _stop: cython.Py_ssize_t

    def __init__(self, segments) -> None:
        self._segments = iter(segments)
        self._batch = None
        self._row = 0
        self._stop = 0

    def __iter__(self):
        return self

    def __next__(self):
        while self._row >= self._stop:
            self._batch, self._row, self._stop = next(self._segments)
            self._origin = self._batch.origin
        row: cython.Py_ssize_t = self._row
        self._row = row + 1
        return _make(self._batch, self._origin, row)


class Walk:
    """Creates records one by one, as ``RecordIterator``, for an application that may take long for each.

    It calls ``go_on(walk)`` before the next record: at the end of its slices, after ``interrupt()``, and, with a ``clock``, at the
    time ``ask_at``. The callback may set other slices (``take``) or a later ``ask_at``; if it returns False, the walk ends.
    ``current`` is the last record that was returned, ``at`` the caller's number of its slices. Both change in one step, even if a
    signal handler raises. The attributes are declared in ``record.pxd``.
    """

    def __init__(self, go_on, clock=None) -> None:
        self._go_on = go_on
        self._clock = clock
        self._interrupted = False
        self.ask_at = 0.0
        self.take(())

    def take(self, segments, at=-1):
        """Replace the slices; ``at`` is the caller's number of the new ones."""
        self.at = at
        self._segments = iter(segments)
        self._batch = self._origin = self.current = None
        self._row = self._stop = 0
        self._next_slice()

    def interrupt(self):
        """Call ``go_on`` before the next record."""
        self._interrupted = True

    @property
    def has_more(self) -> bool:
        """Whether the slices have more records."""
        return self._row < self._stop

    def __iter__(self):
        return self

    def __next__(self):
        while self._row >= self._stop or self._interrupted or self._is_due():
            self._interrupted = False
            if not self._go_on(self):
                raise StopIteration
        record = _make(self._batch, self._origin, self._row)
        self._row += 1
        if self._row >= self._stop:
            self._next_slice()
        self.current = record
        return record

    def _is_due(self):
        now: cython.double
        if self._clock is None:
            return False
        now = self._clock()
        return now >= self.ask_at

    def _next_slice(self):
        segment = next(self._segments, None)
        if segment is not None:
            self._batch, self._row, self._stop = segment
            self._origin = self._batch.origin


@cython.cfunc
def _make(batch: Batch, origin: Origin, row: cython.Py_ssize_t) -> Record:
    at: cython.Py_ssize_t = row * 7
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t
    record: Record = Record.__new__(Record)
    record._origin = origin
    record._offset = batch.base_offset + batch.fields[at]
    record._timestamp = batch.times[row]
    start, size = batch.fields[at + 1], batch.fields[at + 2]
    record._key = None if size < 0 else _bytes(batch.data, start, size)
    start, size = batch.fields[at + 3], batch.fields[at + 4]
    record._value = None if size < 0 else _bytes(batch.data, start, size)
    start, size = batch.fields[at + 5], batch.fields[at + 6]
    record._headers = () if size <= 1 else _bytes(batch.data, start, size)
    if not cython.compiled:
        record._key_object = record._value_object = None
    return record


@cython.cfunc
@cython.inline
def _bytes(data: cython.p_const_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return data[start : start + size]
    return bytes(data[start : start + size])


def make_record(batch: Batch, row: int) -> Record:
    """The record of one row."""
    if not 0 <= row < batch.count:
        raise IndexError(row)
    return _make(batch, batch.origin, row)


def keys_and_values(batch: Batch) -> list:
    """The key and value of each record of an indexed batch."""
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    entries = []
    for row in range(batch.count):
        at = row * 7
        key = None if batch.fields[at + 2] < 0 else _bytes(batch.data, batch.fields[at + 1], batch.fields[at + 2])
        value = None if batch.fields[at + 4] < 0 else _bytes(batch.data, batch.fields[at + 3], batch.fields[at + 4])
        entries.append((key, value))
    return entries
