"""One record batch and where everything lies inside it: the one walk over untrusted bytes, made without the GIL.

Owns the record layout of version 2 batches and the table that a walk leaves behind (``Batch.index``). Must not know of fetches,
topics or columns. Invariants: every varint, length and count is checked against the bytes that are there before it is
believed; after ``index()`` nothing about a batch can fail; memory is bounded by the bytes given, never by a claimed count.

The source runs as it stands or compiled by Cython: what is a C pointer in the one is a ``memoryview`` in the other. The
attributes of ``Batch`` are declared in ``batch.pxd``.
Source of the layout: "Record Batch" and "Record" in the protocol's documentation (KIP-98).
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_READ
    from cython.cimports.cpython.bytearray import PyByteArray_FromStringAndSize
    from cython.cimports.cpython.memoryview import PyMemoryView_FromMemory

from crc32c import crc32c

from ottla.records.compression import DEFAULT_MAX_BATCH_BYTES, decompress
from ottla.records.header import (
    CRC_OFFSET,
    CRC_START,
    INVALID_RECORD,
    Compression,
    ControlType,
    InvalidBatchError,
    read_header,
)

COMPILED = cython.compiled

_REASONS = {
    1: "a record's length reaches beyond the batch",
    2: "a record is cut short or a varint is too long",
    3: "a key's length is negative or reaches beyond its record",
    4: "a value's length is negative or reaches beyond its record",
    5: "the count of headers is negative or more than the record can hold",
    6: "a header's length is negative or reaches beyond its record",
    7: "bytes are left at the end of a record",
    8: "offset deltas do not count 0, 1, 2 and so on",
    9: "offset deltas do not ascend up to the last one of the header",
    10: "a timestamp is out of range",
    11: "bytes are left after the last record",
}

# Numbers stand literally in the loops below, because a module's global is a Python object to compiled code. A row of the table is
# seven ints: offset delta, then position and length of key, value and headers (their count included) in the payload.


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _long_varint(
    data: cython.p_const_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t, bits: cython.int
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of up to ``bits`` bits and the position after it, which is beyond ``end`` where it is not one."""
    raw: cython.ulonglong = 0
    byte: cython.ulonglong = 0
    shift: cython.int = 0
    half: cython.longlong
    sign: cython.longlong
    while position < end:
        byte = data[position]
        position += 1
        if shift + 7 > bits and (byte >> (bits - shift)) != 0:
            return 0, end + 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            half = raw >> 1
            sign = raw & 1
            return half ^ -sign, position
        shift += 7
    return 0, end + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(
    data: cython.p_const_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t, bits: cython.int
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """``_long_varint`` with a short way for one or two bytes. Once beyond ``end`` it stays there: one check serves several."""
    low: cython.int
    high: cython.int
    if position + 1 < end:
        low = data[position]
        if low < 0x80:
            return (low >> 1) ^ -(low & 1), position + 1
        high = data[position + 1]
        if high < 0x80:
            high = (high << 7) | (low & 0x7F)
            return (high >> 1) ^ -(high & 1), position + 2
    return _long_varint(data, position, end, bits)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_headers(data: cython.p_const_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after a record's headers, or minus the number of the reason why they are not headers."""
    count: cython.longlong
    size: cython.longlong
    count, position = _varint(data, position, end, 32)
    if count < 0 or position > end or count > (end - position) // 2:
        return -5
    while count > 0:
        size, position = _varint(data, position, end, 32)
        if size < 0 or size > end - position:
            return -6
        position += size
        size, position = _varint(data, position, end, 32)
        if size < -1 or size > end - position:
            return -6
        if size > 0:
            position += size
        count -= 1
    return position


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _walk(batch: Batch, keep: cython.bint) -> tuple[cython.int, cython.Py_ssize_t]:
    """Walk the claimed records, which must fill the payload: 0, or the number of a reason, and where the walk ended.

    With ``keep`` the places go into the batch's table; without, as a broker validates, offset deltas must be 0 to n - 1.
    """
    data: cython.p_const_uchar = batch.data
    fields: cython.p_int = batch.fields
    times: cython.p_longlong = batch.times
    end: cython.Py_ssize_t = batch.payload_size
    last_delta: cython.longlong = batch.last_offset - batch.base_offset
    base_timestamp: cython.longlong = batch.base_timestamp
    position: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t
    following: cython.Py_ssize_t = 0
    record_end: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    number: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    headers_at: cython.Py_ssize_t
    key_bytes: cython.Py_ssize_t = 0
    value_bytes: cython.Py_ssize_t = 0
    has_headers: cython.bint = False
    length: cython.longlong
    time: cython.longlong
    delta: cython.longlong
    key: cython.longlong
    value: cython.longlong
    previous: cython.longlong = -1
    latest: cython.longlong = 0x7FFFFFFFFFFFFFFF
    for number in range(batch.claimed):
        start = following
        length, position = _varint(data, start, end, 32)
        if length < 0 or length > end - position:
            return 1, start
        record_end = position + length
        following = record_end  # and not where the walk of this record ends, so that the processor can begin the next one
        time, position = _varint(data, position + 1, record_end, 64)
        delta, position = _varint(data, position, record_end, 32)
        key, position = _varint(data, position, record_end, 32)
        if position > record_end:
            return 2, start
        if key < -1 or key > record_end - position:
            return 3, start
        key_at = position
        if key > 0:
            position += key
            key_bytes += key
        value, position = _varint(data, position, record_end, 32)
        if value < -1 or value > record_end - position:
            return 4, start
        value_at = position
        if value > 0:
            position += value
            value_bytes += value
        headers_at = position
        if position + 1 != record_end or data[position] != 0:
            has_headers = True
            position = _skip_headers(data, position, record_end)
            if position < 0:
                return -position, start
            if position != record_end:
                return 7, start
        if keep:
            if delta <= previous or delta > last_delta:
                return 9, start
            if time >= 0:
                if base_timestamp > latest - time:
                    return 10, start
            elif base_timestamp < -latest - 1 - time:
                return 10, start
            previous = delta
            times[number] = base_timestamp + time
            fields[row] = delta
            fields[row + 1] = key_at
            fields[row + 2] = key
            fields[row + 3] = value_at
            fields[row + 4] = value
            fields[row + 5] = headers_at
            fields[row + 6] = record_end - headers_at
            row += 7
        elif delta != number:
            return 8, start
    batch.key_bytes = key_bytes
    batch.value_bytes = value_bytes
    batch.has_headers = has_headers
    return (0, following) if following == end else (11, following)


def new_buffer(size: cython.Py_ssize_t) -> bytearray:
    """A buffer whose bytes will all be written before anybody reads them."""
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    return bytearray(size)


@cython.cfunc
@cython.inline
def _uint32(data: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = data[at]
    return (high << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]


@cython.cfunc
@cython.inline
def _int32(data: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    sign: cython.longlong = 1
    sign <<= 31
    return (_uint32(data, at) ^ sign) - sign


@cython.cfunc
@cython.inline
def _int64(data: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    return (_int32(data, at) << 32) | _uint32(data, at + 4)


@cython.boundscheck(False)
def pointer_to(source):
    """The bytes of a memoryview, which must stay alive as long as they are looked at."""
    view: cython.const_uchar[::1]
    if cython.compiled:
        view = source
        return cython.address(view[0])
    return source


def open_batch(source, data, length, position):
    """The batch at ``position`` of ``source``, whose bytes are ``data``, or ``None`` where it is not all there.

    Raises ``InvalidBatchError`` as ``read_header`` does.
    """
    size: cython.longlong
    last_delta: cython.longlong
    if length - position < 12:
        return None
    size = 12 + _int32(data, position + 8)
    if size > length - position:
        return None
    if size < 61:
        read_header(source, position)  # which raises and says why
    batch: Batch = Batch()
    batch.source = source
    batch.position = position
    batch.size = size
    batch.base_offset = _int64(data, position)
    batch.leader_epoch = _int32(data, position + 12)
    batch.crc = _uint32(data, position + 17)
    batch.attributes = data[position + 21] * 256 + data[position + 22]
    last_delta = _int32(data, position + 23)
    batch.base_timestamp = _int64(data, position + 27)
    batch.max_timestamp = _int64(data, position + 35)
    batch.producer_id = _int64(data, position + 43)
    batch.claimed = _int32(data, position + 57)
    batch.count = batch.payload_size = batch.key_bytes = batch.value_bytes = 0
    batch.has_headers = False
    if data[position + 16] != 2 or last_delta < 0 or batch.claimed < 0 or not 0 <= batch.base_offset >> 32 < 0x7FFFFFFF:
        read_header(source, position)
    batch.last_offset = batch.base_offset + last_delta
    if cython.compiled:
        batch.data = data + position
    else:
        batch.data = data[position:]
        batch.owner = batch.table = batch.times = batch.fields = batch.origin = None
    return batch


class Batch:
    """The numbers of one batch's header; after ``index()`` also a table of its records.

    For each record the table knows offset, timestamp, and where key, value and headers lie. ``origin`` is whatever the maker
    wants to find again with the records. ``claimed`` is the header's record count, ``count`` the number of rows.
    """

    def require_crc(self):
        """Raise ``InvalidBatchError`` where the checksum is not that of the header. Only before ``index()``."""
        if cython.compiled:
            covered = PyMemoryView_FromMemory(cython.cast(cython.p_char, self.data) + 21, self.size - 21, PyBUF_READ)
        else:
            covered = self.data[21 : self.size]
        if crc32c(covered) != self.crc:
            raise _damaged(self.base_offset, self.position)

    def index(self, max_bytes):
        """Inflate the records, to ``max_bytes`` at most, and make the table. Raises ``InvalidBatchError``.

        From then on an inflated batch does not need the buffer that it came from.
        """
        error: cython.int
        where: cython.Py_ssize_t
        row: cython.Py_ssize_t
        time: cython.longlong
        raw: cython.p_char
        self._load(max_bytes)
        self.table = new_buffer(self.claimed * (7 * 4 + 8))
        if cython.compiled:
            raw = self.table
            self.times = cython.cast(cython.p_longlong, raw)
            self.fields = cython.cast(cython.p_int, raw + self.claimed * 8)
        else:
            self.times = memoryview(self.table)[: self.claimed * 8].cast("q")
            self.fields = memoryview(self.table)[self.claimed * 8 :].cast("i")
        with cython.nogil:
            error, where = _walk(self, True)
        if error:
            raise self._refused(error, where)
        self.count = self.claimed
        if self.attributes & 0x08:
            time = self.max_timestamp
            for row in range(self.count):
                self.times[row] = time

    def verify(self, max_bytes):
        """Walk the records as a broker validates a produced batch, without keeping anything."""
        error: cython.int
        where: cython.Py_ssize_t
        self._load(max_bytes)
        with cython.nogil:
            error, where = _walk(self, False)
        if error:
            raise self._refused(error, where)

    def _load(self, max_bytes):
        """Set the payload: the bytes of the records as they lie, or inflated."""
        if self.attributes & 0x07:
            self.owner = self._inflated(max_bytes)
            self.payload_size = len(self.owner)
            self.data = pointer_to(self.owner)
        else:
            self.owner = self.source
            self.payload_size = self.size - 61
            self.data = self.data + 61 if cython.compiled else self.data[61 : self.size]
        self.source = None
        if self.payload_size > 0x7FFFFFFF or self.claimed > self.payload_size // 7:
            raise InvalidBatchError(
                f"batch at offset {self.base_offset} claims {self.claimed} records in {self.payload_size} bytes",
                code=INVALID_RECORD,
            )

    def _inflated(self, max_bytes):
        codec = self.attributes & 0x07
        if codec > 4:
            read_header(self.source, self.position).compression  # noqa: B018 - which raises and says why
        return memoryview(decompress(Compression(codec), self.source[self.position + 61 : self.position + self.size], max_bytes))

    def _refused(self, reason, where) -> InvalidBatchError:
        return InvalidBatchError(
            f"batch at offset {self.base_offset} with {self.claimed} records: {_REASONS[reason]}"
            f" (byte {where} of its {'de' if self.attributes & 7 else 'un'}compressed records)",
            code=INVALID_RECORD,
        )

    def first_from(self, offset):
        """The first row whose offset is at or after ``offset``; ``count`` where there is none."""
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = self.count
        middle: cython.Py_ssize_t
        if offset <= self.base_offset:
            return 0
        while low < high:
            middle = (low + high) // 2
            if self.base_offset + self.fields[middle * 7] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def first_at(self, timestamp: int) -> int:
        """The first row stamped at or after ``timestamp``; ``count`` where there is none."""
        row: cython.Py_ssize_t
        wanted: cython.longlong = max(-(2**63), min(timestamp, 2**63 - 1))
        for row in range(self.count):
            if self.times[row] >= wanted:
                return row
        return self.count

    def offset(self, row: cython.Py_ssize_t) -> int:
        """The offset of a row."""
        if not 0 <= row < self.count:
            raise IndexError(row)
        return self.base_offset + self.fields[row * 7]

    def timestamp(self, row: cython.Py_ssize_t) -> int:
        """The timestamp of a row, in milliseconds since 1970."""
        if not 0 <= row < self.count:
            raise IndexError(row)
        return self.times[row]

    def marker(self):
        """What an indexed control batch says of its transaction; ``None`` where it says nothing of one."""
        if self.count == 0:
            return None
        if self.fields[2] < 4:
            raise InvalidBatchError(f"control record at offset {self.base_offset} has no type", code=INVALID_RECORD)
        kind: cython.int = self.data[self.fields[1] + 2] * 256 + self.data[self.fields[1] + 3]
        return (ControlType.ABORT, ControlType.COMMIT)[kind] if kind < 2 else None


def _damaged(base_offset: int, position: int) -> InvalidBatchError:
    return InvalidBatchError(
        f"batch at offset {base_offset} (byte {position + CRC_OFFSET}) fails its checksum: its bytes were damaged"
    )


def batch_at(data, position: int = 0) -> Batch:
    """The batch at ``position``, which must lie whole in ``data``; raises ``InvalidBatchError`` where it does not."""
    source = memoryview(data)
    batch = open_batch(source, pointer_to(source), len(source), position) if 0 <= position <= len(source) else None
    if batch is None:
        header = read_header(data, position)
        left = len(data) - position
        raise InvalidBatchError(f"truncated batch at byte {position}: {left} bytes left of the {header.size} that it claims")
    return batch


def indexed_batch(data, position: int, max_bytes: int = DEFAULT_MAX_BATCH_BYTES) -> Batch:
    """The batch at ``position`` with its table. Its checksum is not looked at. Raises ``InvalidBatchError``."""
    batch: Batch = batch_at(data, position)
    batch.index(max_bytes)
    return batch


def crc_matches(data, position: int, header) -> bool:
    """Whether the checksum of a batch that lies whole in ``data`` is the one in its header."""
    with memoryview(data) as view:
        return crc32c(view[position + CRC_START : position + header.size]) == header.crc


def check_crc(data, position: int = 0) -> bool:
    """Whether the batch at ``position`` is whole and its bytes are those that were written (CRC-32C).

    Raises ``InvalidBatchError`` as ``read_header`` does.
    """
    header = read_header(data, position)
    return position + header.size <= len(data) and crc_matches(data, position, header)


def verify_batch(data, position: int = 0, *, max_uncompressed: int = DEFAULT_MAX_BATCH_BYTES):
    """What a broker checks before it stores a produced batch; returns the header.

    The format, the checksum, the codec, that every length lies inside the next, that there are as many records as claimed, and
    that offset deltas are 0 to n - 1. Records are walked, not copied; compressed ones are inflated, to ``max_uncompressed``
    bytes at most. Raises ``InvalidBatchError``, whose ``code`` is what the protocol calls the fault.
    """
    header = read_header(data, position)
    batch: Batch = batch_at(data, position)
    batch.require_crc()
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidBatchError(
            f"batch at offset {header.base_offset} claims {header.record_count} records up to offset delta"
            f" {header.last_offset_delta}",
            code=INVALID_RECORD,
        )
    batch.verify(max_uncompressed)
    return header


def find_timestamp(data, position: int, target_ms: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after ``target_ms`` in the batch at ``position``, if there is one."""
    batch: Batch = indexed_batch(data, position)
    row = batch.first_at(target_ms)
    return None if row == batch.count else (batch.offset(row), batch.timestamp(row))


def control_marker(data, position: int = 0) -> ControlType | None:
    """What the control batch at ``position`` says of its transaction; ``None`` where it says nothing of one.

    That is so for control records of another kind, and for a batch whose marker was compacted away. Raises
    ``InvalidBatchError`` where the batch is damaged or is no control batch.
    """
    batch: Batch = indexed_batch(data, position)
    if not batch.attributes & 0x20:
        raise InvalidBatchError(f"batch at offset {batch.base_offset} is no control batch", code=INVALID_RECORD)
    return batch.marker()
