"""Where everything lies inside a batch's records: the one walk over untrusted bytes, made without the GIL.

Owns the record layout of version 2 batches and the table that a walk leaves behind (``BatchIndex``). Must not know of fetches,
topics or columns. Invariants: every varint, length and count is checked against the bytes that are there before it is
believed; after a ``BatchIndex`` was made nothing in it can fail; memory is bounded by the bytes given, never by a claimed count.

The source runs as it stands or compiled by Cython: what is a C pointer in the one is a ``memoryview`` in the other.
Source of the layout: "Record" in the protocol's documentation (KIP-98).
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_FromStringAndSize

import crc32c

from ottla.records.compression import DEFAULT_MAX_BATCH_BYTES, decompress
from ottla.records.header import (
    CRC_OFFSET,
    CRC_START,
    HEADER_SIZE,
    INVALID_RECORD,
    LOG_APPEND_TIME_BIT,
    ControlType,
    InvalidBatchError,
    read_header,
)

COMPILED = cython.compiled

# A row of the table: offset delta, then position and length of key, value and headers (count included) in the payload.
# Literal numbers in the loops below, because a module's global is a Python object to compiled code.
ROW = 7
_ROW_BYTES = ROW * 4 + 8
_SMALLEST_RECORD = 7
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1

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
@cython.nogil
@cython.exceptval(check=False)
def _walk(
    data: cython.p_const_uchar,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    last_delta: cython.longlong,
    base_timestamp: cython.longlong,
    keep: cython.bint,
    fields: cython.p_int,
    times: cython.p_longlong,
) -> tuple[cython.int, cython.Py_ssize_t]:
    """Walk ``count`` records that must fill ``data[:end]``: 0 and ``end``, or the number of a reason and where it was found.

    With ``keep`` their places go into ``fields`` and ``times``; without, as a broker validates, offset deltas must be 0 to
    ``count - 1``.
    """
    position: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t
    record_end: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    number: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    length: cython.longlong
    time: cython.longlong
    delta: cython.longlong
    key: cython.longlong
    value: cython.longlong
    previous: cython.longlong = -1
    latest: cython.longlong = 0x7FFFFFFFFFFFFFFF
    for number in range(count):
        start = position
        length, position = _varint(data, position, end, 32)
        if length < 0 or length > end - position:
            return 1, start
        record_end = position + length
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
        value, position = _varint(data, position, record_end, 32)
        if value < -1 or value > record_end - position:
            return 4, start
        value_at = position
        if value > 0:
            position += value
        if position + 1 == record_end and data[position] == 0:
            position = record_end
        else:
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
            value_at = value_at + value if value > 0 else value_at
            fields[row + 5] = value_at
            fields[row + 6] = record_end - value_at
            row += 7
        elif delta != number:
            return 8, start
    return (0, position) if position == end else (11, position)


def new_buffer(size: cython.Py_ssize_t) -> bytearray:
    """A buffer whose bytes will all be written before anybody reads them."""
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    return bytearray(size)


class BatchIndex:
    """A table of the records of one batch: for each its offset, timestamp, and where key, value and headers lie.

    ``owner`` keeps the bytes alive and in place. ``origin`` is whatever the maker wants to find again with the records.
    """

    def first_from(self, offset: int) -> int:
        """The first row whose offset is at or after ``offset``; ``count`` where there is none."""
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = self.count
        middle: cython.Py_ssize_t
        delta: cython.longlong = max(-1, min(offset - self.base_offset, 2**31))
        while low < high:
            middle = (low + high) // 2
            if self.fields[middle * 7] < delta:
                low = middle + 1
            else:
                high = middle
        return low

    def first_at(self, timestamp: int) -> int:
        """The first row stamped at or after ``timestamp``; ``count`` where there is none."""
        row: cython.Py_ssize_t
        wanted: cython.longlong = max(_MIN_INT64, min(timestamp, _MAX_INT64))
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


def _refuse(header, reason: int, where: int) -> InvalidBatchError:
    return InvalidBatchError(
        f"batch at offset {header.base_offset} with {header.record_count} records: {_REASONS[reason]}"
        f" (byte {where} of its {'un' if not header.attributes & 7 else 'de'}compressed records)",
        code=INVALID_RECORD,
    )


def _payload(data, position: int, header, max_bytes: int):
    """The records of a batch that lies whole in ``data``, inflated: what holds the bytes, where they begin and end."""
    if not header.attributes & 0x07:
        start, end = position + HEADER_SIZE, position + header.size
        owner = data
    else:
        with memoryview(data) as view:
            owner = decompress(header.compression, view[position + HEADER_SIZE : position + header.size], max_bytes)
        start, end = 0, len(owner)
    if end - start > 0x7FFFFFFF or header.record_count * _SMALLEST_RECORD > end - start:
        raise InvalidBatchError(
            f"batch at offset {header.base_offset} claims {header.record_count} records in {end - start} bytes",
            code=INVALID_RECORD,
        )
    return owner, start, end


def _require_whole(data, position: int, header) -> None:
    if position + header.size > len(data):
        raise InvalidBatchError(
            f"truncated batch at byte {position}: {len(data) - position} bytes left of the {header.size} that it claims"
        )


def check_crc(data, position: int = 0) -> bool:
    """Whether the batch at ``position`` is whole and its bytes are those that were written (CRC-32C).

    Raises ``InvalidBatchError`` as ``read_header`` does.
    """
    header = read_header(data, position)
    return position + header.size <= len(data) and crc_matches(data, position, header)


def crc_matches(data, position: int, header) -> bool:
    """Whether the checksum of a batch that lies whole in ``data`` is the one in its header."""
    with memoryview(data) as view:
        return crc32c.crc32c(view[position + CRC_START : position + header.size]) == header.crc


def require_crc(data, position: int, header) -> None:
    """Raise ``InvalidBatchError`` where the checksum of a batch is not that of its header."""
    if not crc_matches(data, position, header):
        raise InvalidBatchError(
            f"batch at offset {header.base_offset} (byte {position + CRC_OFFSET}) fails its checksum: its bytes were damaged"
        )


def index_batch(data, position: int, header, max_bytes: int = DEFAULT_MAX_BATCH_BYTES, origin=None) -> BatchIndex:
    """The table of the batch at ``position``, which must lie whole in ``data``. Its checksum is not looked at.

    Raises ``InvalidBatchError``. The table keeps ``data``, or the inflated records, in place for as long as it lives.
    """
    owner, start, end = _payload(data, position, header, max_bytes)
    count: cython.Py_ssize_t = header.record_count
    size: cython.Py_ssize_t = end - start
    first: cython.Py_ssize_t = start
    last_delta: cython.longlong = header.last_offset_delta
    base_timestamp: cython.longlong = header.base_timestamp
    row: cython.Py_ssize_t
    error: cython.int
    where: cython.Py_ssize_t
    view: cython.const_uchar[::1]
    raw: cython.p_char
    index = BatchIndex()
    index.owner = memoryview(owner)
    index.table = new_buffer(count * (7 * 4 + 8))
    if cython.compiled:
        view = index.owner
        raw = index.table
        index.data = cython.address(view[0]) + first
        index.times = cython.cast(cython.p_longlong, raw)
        index.fields = cython.cast(cython.p_int, raw + count * 8)
    else:
        index.data = index.owner[start:end].cast("B")
        index.times = memoryview(index.table)[: count * 8].cast("q")
        index.fields = memoryview(index.table)[count * 8 :].cast("i")
    index.count = count
    index.size = size
    index.base_offset = header.base_offset
    index.origin = origin
    with cython.nogil:
        error, where = _walk(index.data, size, count, last_delta, base_timestamp, True, index.fields, index.times)
    if error:
        raise _refuse(header, error, where)
    if header.attributes & LOG_APPEND_TIME_BIT:
        base_timestamp = header.max_timestamp
        for row in range(count):
            index.times[row] = base_timestamp
    return index


def verify_batch(data, position: int = 0, *, max_uncompressed: int = DEFAULT_MAX_BATCH_BYTES):
    """What a broker checks before it stores a produced batch; returns the header.

    The format, the checksum, the codec, that every length lies inside the next, that there are as many records as claimed, and
    that offset deltas are 0 to n - 1. Records are walked, not copied; compressed ones are inflated, to ``max_uncompressed``
    bytes at most. Raises ``InvalidBatchError``, whose ``code`` is what the protocol calls the fault.
    """
    header = read_header(data, position)
    _require_whole(data, position, header)
    require_crc(data, position, header)
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidBatchError(
            f"batch at offset {header.base_offset} claims {header.record_count} records up to offset delta"
            f" {header.last_offset_delta}",
            code=INVALID_RECORD,
        )
    owner, start, end = _payload(data, position, header, max_uncompressed)
    count: cython.Py_ssize_t = header.record_count
    size: cython.Py_ssize_t = end - start
    first: cython.Py_ssize_t = start
    error: cython.int
    where: cython.Py_ssize_t
    view: cython.const_uchar[::1]
    records: cython.p_const_uchar
    if cython.compiled:
        view = owner
        records = cython.address(view[0]) + first
        with cython.nogil:
            error, where = _walk(records, size, count, 0, 0, False, cython.NULL, cython.NULL)
    else:
        with memoryview(owner) as whole:
            error, where = _walk(whole[start:end], size, count, 0, 0, False, None, None)
    if error:
        raise _refuse(header, error, where)
    return header


def find_timestamp(data, position: int, target_ms: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after ``target_ms`` in the batch at ``position``, if there is one."""
    header = read_header(data, position)
    _require_whole(data, position, header)
    index = index_batch(data, position, header)
    row = index.first_at(target_ms)
    return None if row == index.count else (index.offset(row), index.timestamp(row))


def control_marker(data, position: int = 0) -> ControlType | None:
    """What the control batch at ``position`` says of its transaction; ``None`` where it says nothing of one.

    That is so for control records of another kind, and for a batch whose marker was compacted away. Raises
    ``InvalidBatchError`` where the batch is damaged or is no control batch.
    """
    header = read_header(data, position)
    _require_whole(data, position, header)
    if not header.is_control:
        raise InvalidBatchError(f"batch at offset {header.base_offset} is no control batch", code=INVALID_RECORD)
    index: BatchIndex = index_batch(data, position, header)
    if index.count == 0:
        return None
    start: cython.Py_ssize_t = index.fields[1]
    length: cython.Py_ssize_t = index.fields[2]
    if length < 4:
        raise InvalidBatchError(f"control record at offset {header.base_offset} has no type", code=INVALID_RECORD)
    kind: cython.int = index.data[start + 2] * 256 + index.data[start + 3]
    return {0: ControlType.ABORT, 1: ControlType.COMMIT}.get(kind)
