"""One record batch, and the table of the positions in it: a single pass over untrusted bytes, without the GIL.

Owns the record layout of version 2 batches and the table that the pass fills (``Batch.index``). Must not know fetches, topics or
columns. Invariants: each varint, length and count is checked against the available bytes before use; after ``index()`` no access to
a batch can fail; memory is bounded by the number of bytes, never by a claimed count.

The source runs uncompiled or compiled by Cython: a C pointer in compiled code is a ``memoryview`` otherwise. The attributes of
``Batch`` are declared in ``batch.pxd``.
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

# The loops below contain literal numbers, because a global of the module is a Python object in compiled code. A row of the table
# has seven ints: the offset delta, then the positions and lengths of key, value and headers (including their count) in the payload.


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _long_varint(
    data: cython.p_const_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t, bits: cython.int
) -> tuple[cython.ulonglong, cython.Py_ssize_t]:
    """A varint of up to ``bits`` bits, still zigzag-encoded, and the position after it, which is beyond ``end`` if it is
    invalid."""
    raw: cython.ulonglong = 0
    byte: cython.ulonglong = 0
    shift: cython.int = 0
    while position < end:
        byte = data[position]
        position += 1
        if shift + 7 > bits and (byte >> (bits - shift)) != 0:
            return 0, end + 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, position
        shift += 7
    return 0, end + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(
    data: cython.p_const_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t, bits: cython.int
) -> tuple[cython.ulonglong, cython.Py_ssize_t]:
    """``_long_varint`` with a fast path for one or two bytes. A position beyond ``end`` stays there, so one check serves
    several."""
    low: cython.ulonglong
    high: cython.ulonglong
    if position + 1 < end:
        low = data[position]
        if low < 0x80:
            return low, position + 1
        high = data[position + 1]
        if high < 0x80:
            return (high << 7) + low - 0x80, position + 2
    return _long_varint(data, position, end, bits)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_headers(data: cython.p_const_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after a record's headers; for invalid headers, the negative number of the reason."""
    raw: cython.ulonglong
    count: cython.Py_ssize_t
    size: cython.Py_ssize_t
    raw, position = _varint(data, position, end, 32)
    count = raw >> 1
    if raw & 1 or position > end or count > (end - position) // 2:
        return -5
    while count > 0:
        raw, position = _varint(data, position, end, 32)
        size = raw >> 1
        if raw & 1 or size > end - position:
            return -6
        position += size
        raw, position = _varint(data, position, end, 32)
        size = raw >> 1
        if size > end - position or (raw & 1 and raw != 1):
            return -6
        position += size
        count -= 1
    return position


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _walk(batch: Batch, keep: cython.bint) -> tuple[cython.int, cython.Py_ssize_t]:
    """Walk the claimed records, which must fill the payload. Return 0 or the number of a reason, and the position of the end.

    The positions go into the batch's table. Without ``keep``, when a broker validates, all go into its first row, and offset deltas
    must be 0 to n - 1. Each field of a row is written as soon as it is read, which leaves the registers to the next ones.
    """
    data: cython.p_const_uchar = batch.data
    fields: cython.p_int = batch.fields
    times: cython.p_longlong = batch.times
    end: cython.Py_ssize_t = batch.payload_size
    last_delta: cython.Py_ssize_t = batch.last_offset - batch.base_offset
    base_timestamp: cython.longlong = batch.base_timestamp if keep else 0
    latest: cython.longlong = 0x7FFFFFFFFFFFFFFF
    earliest: cython.longlong = -latest - 1
    position: cython.Py_ssize_t
    start: cython.Py_ssize_t
    following: cython.Py_ssize_t = 0
    record_end: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    cell: cython.Py_ssize_t = 0
    step: cython.Py_ssize_t = 1 if keep else 0
    _number: cython.Py_ssize_t
    key_bytes: cython.Py_ssize_t = 0
    value_bytes: cython.Py_ssize_t = 0
    has_headers: cython.bint = False
    raw: cython.ulonglong
    half: cython.longlong
    sign: cython.longlong
    size: cython.Py_ssize_t
    least_delta: cython.Py_ssize_t = 0
    if base_timestamp > 0:
        latest -= base_timestamp
    else:
        earliest -= base_timestamp
    for _number in range(batch.claimed):
        start = following
        raw, position = _varint(data, start, end, 32)
        size = raw >> 1
        if raw & 1 or size > end - position:
            return 1, start
        record_end = position + size
        following = record_end  # not the end of this record's walk, so that the processor can begin the next record
        raw, position = _varint(data, position + 1, end, 64)
        half, sign = raw >> 1, raw & 1
        half ^= -sign
        if half > latest or half < earliest:
            return 10, start
        times[row] = base_timestamp + half
        raw, position = _varint(data, position, end, 32)
        size = raw >> 1
        fields[cell] = size
        if raw & 1 or size < least_delta or size > last_delta:
            return 2 if position > record_end else 9 if keep else 8, start
        least_delta = size + 1
        raw, position = _varint(data, position, end, 32)
        if position > record_end:
            return 2, start
        size = raw >> 1
        fields[cell + 1] = position
        fields[cell + 2] = size
        if raw & 1:
            if raw != 1:
                return 3, start
            fields[cell + 2] = -1
        elif size > record_end - position:
            return 3, start
        position += size
        key_bytes += size
        raw, position = _varint(data, position, end, 32)
        size = raw >> 1
        if size > record_end - position:
            return 4, start
        fields[cell + 3] = position
        fields[cell + 4] = size
        if raw & 1:
            if raw != 1:
                return 4, start
            fields[cell + 4] = -1
        position += size
        value_bytes += size
        fields[cell + 5] = position
        fields[cell + 6] = record_end - position
        if position + 1 != record_end or data[position] != 0:
            has_headers = True
            position = _skip_headers(data, position, record_end)
            if position < 0:
                return -position, start
            if position != record_end:
                return 7, start
        row += step
        cell += 7 * step
    batch.key_bytes = key_bytes
    batch.value_bytes = value_bytes
    batch.has_headers = has_headers
    return (0, following) if following == end else (11, following)


def new_buffer(size):
    """An uninitialized buffer, all of whose bytes are written before they are read."""
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
    """The bytes of a memoryview, which the caller must keep alive while it uses them."""
    view: cython.const_uchar[::1]
    if cython.compiled:
        view = source
        return cython.address(view[0])
    return source


def open_batch(source, data, length, position):
    """The batch at ``position`` of ``source``, whose bytes are ``data``, or ``None`` if it is incomplete.

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
        read_header(source, position)  # which raises the error
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
    """The fields of one batch's header; after ``index()`` also a table of its records.

    The table has, for each record, the offset, the timestamp, and the positions of key, value and headers. ``origin`` is an object
    of the caller's for the records. ``claimed`` is the header's record count, ``count`` the number of rows.
    """

    def require_crc(self):
        """Raise ``InvalidBatchError`` if the checksum is not that of the header. Only before ``index()``."""
        if cython.compiled:
            covered = PyMemoryView_FromMemory(cython.cast(cython.p_char, self.data) + 21, self.size - 21, PyBUF_READ)
        else:
            covered = self.data[21 : self.size]
        if crc32c(covered) != self.crc:
            raise _damaged(self.base_offset, self.position)

    def index(self, max_bytes):
        """Decompress the records, to at most ``max_bytes``, and fill the table. Raises ``InvalidBatchError``.

        A decompressed batch no longer needs the buffer that it was read from.
        """
        error: cython.int
        where: cython.Py_ssize_t
        row: cython.Py_ssize_t
        time: cython.longlong
        self._load(max_bytes)
        self._make_table(self.claimed)
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
        """Validate the records of a produced batch, without a table."""
        error: cython.int
        where: cython.Py_ssize_t
        self._load(max_bytes)
        self._make_table(1)
        with cython.nogil:
            error, where = _walk(self, False)
        if error:
            raise self._refused(error, where)

    def _make_table(self, rows):
        """Allocate a table of ``rows`` rows: first the timestamps, then seven ints for each."""
        raw: cython.p_char
        self.table = new_buffer(rows * (7 * 4 + 8))
        if cython.compiled:
            raw = self.table
            self.times = cython.cast(cython.p_longlong, raw)
            self.fields = cython.cast(cython.p_int, raw + rows * 8)
        else:
            self.times = memoryview(self.table)[: rows * 8].cast("q")
            self.fields = memoryview(self.table)[rows * 8 :].cast("i")

    def _load(self, max_bytes):
        """Set the payload: the bytes of the records, decompressed if necessary."""
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
            read_header(self.source, self.position).compression  # noqa: B018 - which raises the error
        return memoryview(decompress(Compression(codec), self.source[self.position + 61 : self.position + self.size], max_bytes))

    def _refused(self, reason, where) -> InvalidBatchError:
        return InvalidBatchError(
            f"batch at offset {self.base_offset} with {self.claimed} records: {_REASONS[reason]}"
            f" (byte {where} of its {'de' if self.attributes & 7 else 'un'}compressed records)",
            code=INVALID_RECORD,
        )

    def first_from(self, offset):
        """The first row whose offset is at or after ``offset``, or ``count``."""
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
        """The first row whose timestamp is at or after ``timestamp``, or ``count``."""
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
        """The transaction marker of an indexed control batch, or ``None`` if it has none."""
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
    """The batch at ``position``. Raises ``InvalidBatchError`` if ``data`` does not contain all of it."""
    source = memoryview(data)
    batch = open_batch(source, pointer_to(source), len(source), position) if 0 <= position <= len(source) else None
    if batch is None:
        header = read_header(data, position)
        left = len(data) - position
        raise InvalidBatchError(f"truncated batch at byte {position}: {left} bytes left of the {header.size} that it claims")
    return batch


def indexed_batch(data, position: int, max_bytes: int = DEFAULT_MAX_BATCH_BYTES) -> Batch:
    """The batch at ``position`` with its table. Does not verify its checksum. Raises ``InvalidBatchError``."""
    batch: Batch = batch_at(data, position)
    batch.index(max_bytes)
    return batch


def crc_matches(data, position: int, header) -> bool:
    """Whether a batch, all of which is in ``data``, has the checksum of its header."""
    with memoryview(data) as view:
        return crc32c(view[position + CRC_START : position + header.size]) == header.crc


def verify_batch(data, position: int = 0, *, max_uncompressed: int = DEFAULT_MAX_BATCH_BYTES):
    """Validate a produced batch, as a broker does before it stores it; return the header.

    Checks the format, the checksum, the codec, all lengths, the number of records, and that offset deltas are 0 to n - 1. Records
    are not copied; compressed ones are decompressed to at most ``max_uncompressed`` bytes. Raises ``InvalidBatchError``, whose
    ``code`` is the protocol's error code.
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
    """The transaction marker of the control batch at ``position``.

    ``None`` for control records of another kind, and for a batch whose marker was removed by compaction. Raises
    ``InvalidBatchError`` if the batch is damaged or is not a control batch.
    """
    batch: Batch = indexed_batch(data, position)
    if not batch.attributes & 0x20:
        raise InvalidBatchError(f"batch at offset {batch.base_offset} is not a control batch", code=INVALID_RECORD)
    return batch.marker()
