"""Indexed batches to Arrow buffers: filled without the GIL, no Python object a record.

Owns the filling of validity bits, offsets and data. Must not know which columns there are, nor any Arrow library. Invariants:
a buffer is filled as far as its array reaches before it is handed out; a batch was bounds-checked when it was indexed, so
nothing can fail here; the caller keeps each column below 2 GiB.

A column is a *node*: (length, how many are null, buffers, children); of its buffers the first is the validity, ``None`` where
nothing is null. The attributes of ``Rows`` are declared in ``columns.pxd``.
Source of the layouts: "Arrow Columnar Format", fixed-size, variable-size binary and list layouts.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.ottla.records.batch import Batch

from ottla.records.batch import new_buffer
from ottla.records.record import decode_headers

COMPILED = cython.compiled
KEY, VALUE = 1, 3
"""Where a row of a batch's table has the position and length of the key and of the value."""


@cython.cfunc
def _ints(buffer: bytearray) -> cython.p_int:
    if cython.compiled:
        raw: cython.p_char = buffer
        return cython.cast(cython.p_int, raw)
    return memoryview(buffer).cast("i")


@cython.cfunc
def _longs(buffer: bytearray) -> cython.p_longlong:
    if cython.compiled:
        raw: cython.p_char = buffer
        return cython.cast(cython.p_longlong, raw)
    return memoryview(buffer).cast("q")


@cython.cfunc
def _bytes(buffer: bytearray) -> cython.p_uchar:
    if cython.compiled:
        raw: cython.p_uchar = buffer
        return raw
    return memoryview(buffer)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    target: cython.p_uchar,
    at: cython.Py_ssize_t,
    source: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.void:
    if cython.compiled:
        memcpy(target + at, source + start, size)
    else:
        target[at : at + size] = source[start : start + size]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy_short(
    target: cython.p_uchar,
    at: cython.Py_ssize_t,
    source: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.void:
    """``_copy`` in steps of 16 bytes, which a short value gains by: no call, no look at what is left over.

    It may read and write up to 15 bytes more: ``source`` ends at ``end``, ``target`` must have them to spare.
    """
    done: cython.Py_ssize_t = 0
    if cython.compiled:
        if size <= 128 and start + size + 16 <= end:
            while done < size:
                memcpy(target + at + done, source + start + done, 16)
                done += 16
        else:
            memcpy(target + at, source + start, size)
    else:
        target[at : at + size] = source[start : start + size]


class Rows:
    """The rows of one Arrow batch: consecutive rows of several batches, *segments*, laid out for loops that need no GIL.

    ``origins`` lists (origin, how many rows in a row are of it).
    """

    def __init__(self, segments: list) -> None:
        batch: Batch
        start: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        raw: cython.p_char
        number: cython.Py_ssize_t = len(segments)
        self.count = self.key_bytes = self.value_bytes = 0
        self.has_headers = False
        self.segments = number
        self.kept = segments
        self.origins = []
        if cython.compiled:
            self.memory = new_buffer(7 * 8 * number)
            raw = self.memory
            self.data = cython.cast(cython.pointer(cython.p_const_uchar), raw)
            self.fields = cython.cast(cython.pointer(cython.p_int), raw + 8 * number)
            self.times = cython.cast(cython.pointer(cython.p_longlong), raw + 16 * number)
            self.ends = cython.cast(cython.p_longlong, raw + 24 * number)
            self.bases = cython.cast(cython.p_longlong, raw + 32 * number)
            self.starts = cython.cast(cython.p_longlong, raw + 40 * number)
            self.stops = cython.cast(cython.p_longlong, raw + 48 * number)
        else:
            self.data, self.fields, self.times, self.ends, self.bases, self.starts, self.stops = ([None] * number for _ in range(7))
        for number, (batch, start, stop) in enumerate(segments):
            self.data[number] = batch.data
            self.fields[number] = batch.fields
            self.times[number] = batch.times
            self.ends[number] = batch.payload_size
            self.bases[number] = batch.base_offset
            self.starts[number] = start
            self.stops[number] = stop
            self.key_bytes += batch.key_bytes
            self.value_bytes += batch.value_bytes
            self.has_headers = self.has_headers or batch.has_headers
            self.count += stop - start
            if self.origins and self.origins[len(self.origins) - 1][0] is batch.origin:
                self.origins.append((batch.origin, self.origins.pop()[1] + stop - start))
            else:
                self.origins.append((batch.origin, stop - start))


def pieces(parts, max_rows: cython.Py_ssize_t, max_bytes: cython.Py_ssize_t):
    """The rows of these parts, in pieces of ``max_rows`` rows at most none of whose columns is longer than ``max_bytes``.

    That holds as long as no single batch is longer.
    """
    batch: Batch
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    cut: cython.Py_ssize_t
    topic: cython.Py_ssize_t
    rows: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    topics: cython.Py_ssize_t = 0
    segments = []
    for part in parts:
        topic = len(part.topic.encode())
        for batch, start, stop in part.segments:
            while start < stop:
                cut = stop if stop - start <= max_rows - rows else start + max_rows - rows
                if rows > 0 and (size + batch.payload_size > max_bytes or topics + topic * (cut - start) > max_bytes):
                    yield Rows(segments)
                    segments = []
                    rows = size = topics = 0
                    continue
                segments.append((batch, start, cut))
                rows += cut - start
                size += batch.payload_size
                topics += topic * (cut - start)
                start = cut
                if rows == max_rows:
                    yield Rows(segments)
                    segments = []
                    rows = size = topics = 0
    if segments:
        yield Rows(segments)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(rows: Rows, field: cython.int, offsets: cython.p_int, target: cython.p_uchar) -> cython.Py_ssize_t:
    """Values one after the other, and the offset after each; returns how many are null."""
    nulls: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    cell: cython.Py_ssize_t
    end: cython.Py_ssize_t
    size: cython.int
    at: cython.Py_ssize_t = 0
    fields: cython.p_int
    data: cython.p_const_uchar
    offsets[0] = 0
    for segment in range(rows.segments):
        fields = rows.fields[segment]
        data = rows.data[segment]
        end = rows.ends[segment]
        for number in range(rows.starts[segment], rows.stops[segment]):
            cell = number * 7 + field
            size = fields[cell + 1]
            if size > 0:
                _copy_short(target, at, data, fields[cell], size, end)
                at += size
            elif size < 0:
                nulls += 1
            row += 1
            offsets[row] = at
    return nulls


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _mark(rows: Rows, field: cython.int, bits: cython.p_uchar) -> cython.void:
    """Set the validity bit of each value that is not null."""
    row: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    fields: cython.p_int
    for segment in range(rows.segments):
        fields = rows.fields[segment]
        for number in range(rows.starts[segment], rows.stops[segment]):
            if fields[number * 7 + field + 1] >= 0:
                bits[row // 8] |= 1 << (row % 8)
            row += 1


def binary_column(rows: Rows, field: cython.int):
    """The node of all keys or all values."""
    nulls: cython.Py_ssize_t
    bits: cython.p_uchar
    bound: cython.Py_ssize_t = rows.key_bytes if field == 1 else rows.value_bytes
    validity = None
    offsets_buffer, data_buffer = new_buffer(4 * (rows.count + 1)), new_buffer(bound + 16)
    offsets: cython.p_int = _ints(offsets_buffer)
    data: cython.p_uchar = _bytes(data_buffer)
    with cython.nogil:
        nulls = _fill(rows, field, offsets, data)
    if bound > 2 * offsets[rows.count]:
        if not cython.compiled:
            data = None  # a view of it, which would forbid the cut
        del data_buffer[offsets[rows.count] :]
    if nulls > 0:
        validity = bytearray((rows.count + 7) // 8)
        bits = _bytes(validity)
        with cython.nogil:
            _mark(rows, field, bits)
    return rows.count, nulls, (validity, offsets_buffer, data_buffer), ()


def offset_column(rows: Rows):
    """The node of the records' offsets, 64 bits each."""
    row: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    fields: cython.p_int
    buffer = new_buffer(8 * rows.count)
    target: cython.p_longlong = _longs(buffer)
    with cython.nogil:
        for segment in range(rows.segments):
            fields = rows.fields[segment]
            for number in range(rows.starts[segment], rows.stops[segment]):
                target[row] = rows.bases[segment] + fields[number * 7]
                row += 1
    return rows.count, 0, (None, buffer), ()


def timestamp_column(rows: Rows):
    """The node of the timestamps in microseconds, 64 bits each; one that does not fit becomes the nearest that does."""
    row: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    time: cython.longlong
    latest: cython.longlong = 2**63 // 1000 - 1
    times: cython.p_longlong
    buffer = new_buffer(8 * rows.count)
    target: cython.p_longlong = _longs(buffer)
    with cython.nogil:
        for segment in range(rows.segments):
            times = rows.times[segment]
            for number in range(rows.starts[segment], rows.stops[segment]):
                time = times[number]
                if time > latest:
                    time = latest
                elif time < -latest:
                    time = -latest
                target[row] = time * 1000
                row += 1
    return rows.count, 0, (None, buffer), ()


def repeated_ints(runs: list, rows: cython.Py_ssize_t):
    """The node of 32-bit integers out of (value, how often) pairs."""
    value: cython.int
    times: cython.Py_ssize_t
    number: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    buffer = new_buffer(4 * rows)
    target: cython.p_int = _ints(buffer)
    for value, times in runs:
        with cython.nogil:
            for number in range(row, row + times):
                target[number] = value
        row += times
    return rows, 0, (None, buffer), ()


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _repeat(data: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, times: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Repeat the ``size`` bytes at ``at`` until they are there ``times`` times, twice as many with each copy."""
    done: cython.Py_ssize_t = size
    more: cython.Py_ssize_t
    while done < size * times:
        more = done if done <= size * times - done else size * times - done
        _copy(data, at + done, data, at, more)
        done += more
    return at + size * times


def repeated_strings(runs: list, rows: cython.Py_ssize_t):
    """The node of strings out of (UTF-8 bytes, how often) pairs."""
    times: cython.Py_ssize_t
    size: cython.Py_ssize_t
    number: cython.Py_ssize_t
    text: bytes
    row: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    total: cython.Py_ssize_t = 0
    for text, times in runs:
        total += len(text) * times
    offsets_buffer, data_buffer = new_buffer(4 * (rows + 1)), new_buffer(total)
    offsets: cython.p_int = _ints(offsets_buffer)
    data: cython.p_uchar = _bytes(data_buffer)
    offsets[0] = 0
    for text, times in runs:
        size = len(text)
        _copy(data, at, text, 0, size)
        with cython.nogil:
            for number in range(1, times + 1):
                offsets[row + number] = at + number * size
            at = _repeat(data, at, size, times)
        row += times
    return rows, 0, (None, offsets_buffer, data_buffer), ()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(data: cython.p_const_uchar, position: cython.Py_ssize_t) -> tuple[cython.int, cython.Py_ssize_t]:
    """A varint of 32 bits at most that was checked when the batch was indexed, and the position after it."""
    raw: cython.uint = 0
    byte: cython.uint
    shift: cython.int = 0
    half: cython.int
    sign: cython.int
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            half = raw >> 1
            sign = raw & 1
            return half ^ -sign, position
        shift += 7


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count_headers(rows: Rows, offsets: cython.p_int) -> cython.bint:
    """First pass: the list offset after each row; returns whether all names are plain ASCII."""
    row: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    left: cython.int
    size: cython.int
    total: cython.int = 0
    ascii_only: cython.bint = True
    fields: cython.p_int
    data: cython.p_const_uchar
    offsets[0] = 0
    for segment in range(rows.segments):
        fields = rows.fields[segment]
        data = rows.data[segment]
        for number in range(rows.starts[segment], rows.stops[segment]):
            if fields[number * 7 + 6] > 1:
                left, at = _varint(data, fields[number * 7 + 5])
                total += left
                while left > 0:
                    size, at = _varint(data, at)
                    end = at + size
                    while at < end:
                        if data[at] >= 0x80:
                            ascii_only = False
                        at += 1
                    size, at = _varint(data, at)
                    if size > 0:
                        at += size
                    left -= 1
            row += 1
            offsets[row] = total
    return ascii_only


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure_headers(
    rows: Rows, name_offsets: cython.p_int, value_offsets: cython.p_int, bits: cython.p_uchar
) -> cython.Py_ssize_t:
    """Second pass: the offsets after each name and value, and which values are not null; returns how many are."""
    header: cython.Py_ssize_t = 0
    nulls: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    at: cython.Py_ssize_t
    left: cython.int
    size: cython.int
    fields: cython.p_int
    data: cython.p_const_uchar
    name_offsets[0] = value_offsets[0] = 0
    for segment in range(rows.segments):
        fields = rows.fields[segment]
        data = rows.data[segment]
        for number in range(rows.starts[segment], rows.stops[segment]):
            if fields[number * 7 + 6] > 1:
                left, at = _varint(data, fields[number * 7 + 5])
                while left > 0:
                    size, at = _varint(data, at)
                    at += size
                    name_offsets[header + 1] = name_offsets[header] + size
                    size, at = _varint(data, at)
                    if size >= 0:
                        at += size
                        bits[header // 8] |= 1 << (header % 8)
                    else:
                        size = 0
                        nulls += 1
                    value_offsets[header + 1] = value_offsets[header] + size
                    header += 1
                    left -= 1
    return nulls


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_headers(
    rows: Rows,
    names: cython.p_uchar,
    name_offsets: cython.p_int,
    values: cython.p_uchar,
    value_offsets: cython.p_int,
) -> cython.void:
    """Third pass: the bytes of names and values."""
    header: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    at: cython.Py_ssize_t
    left: cython.int
    size: cython.int
    fields: cython.p_int
    data: cython.p_const_uchar
    for segment in range(rows.segments):
        fields = rows.fields[segment]
        data = rows.data[segment]
        for number in range(rows.starts[segment], rows.stops[segment]):
            if fields[number * 7 + 6] > 1:
                left, at = _varint(data, fields[number * 7 + 5])
                while left > 0:
                    size, at = _varint(data, at)
                    _copy(names, name_offsets[header], data, at, size)
                    at += size
                    size, at = _varint(data, at)
                    if size > 0:
                        _copy(values, value_offsets[header], data, at, size)
                        at += size
                    header += 1
                    left -= 1


def header_column(rows: Rows):
    """The node of all headers, lists of (name, value); a record without any has a null list, as in Spark."""
    ascii_only: cython.bint
    if not rows.has_headers:
        nothing = ((0, 0, (None, bytearray(4), bytearray(1)), ()), (0, 0, (None, bytearray(4), bytearray(1)), ()))
        empty = bytearray((rows.count + 7) // 8), bytearray(4 * (rows.count + 1))
        return rows.count, rows.count, empty, ((0, 0, (None,), nothing),)
    offsets_buffer = new_buffer(4 * (rows.count + 1))
    offsets: cython.p_int = _ints(offsets_buffer)
    with cython.nogil:
        ascii_only = _count_headers(rows, offsets)
    total: cython.Py_ssize_t = offsets[rows.count]
    validity, nulls = _list_validity(offsets_buffer, rows.count, total)
    children = _ascii_headers(rows, total) if ascii_only else _decoded_headers(rows)
    return rows.count, nulls, (validity, offsets_buffer), ((total, 0, (None,), children),)


@cython.cfunc
def _list_validity(offsets_buffer: bytearray, rows: cython.Py_ssize_t, total: cython.Py_ssize_t):
    """Validity of the lists, where an empty one counts as null, and how many those are."""
    number: cython.Py_ssize_t
    nulls: cython.Py_ssize_t = 0
    buffer = bytearray((rows + 7) // 8)
    if total == 0:
        return buffer, rows
    offsets: cython.p_int = _ints(offsets_buffer)
    bits: cython.p_uchar = _bytes(buffer)
    for number in range(rows):
        if offsets[number + 1] > offsets[number]:
            bits[number // 8] |= 1 << (number % 8)
        else:
            nulls += 1
    return (buffer if nulls else None), nulls


@cython.cfunc
def _ascii_headers(rows: Rows, total: cython.Py_ssize_t):
    """Names and values copied as they lie."""
    nulls: cython.Py_ssize_t
    name_offsets_buffer, value_offsets_buffer = new_buffer(4 * (total + 1)), new_buffer(4 * (total + 1))
    validity = bytearray((total + 7) // 8)
    name_offsets: cython.p_int = _ints(name_offsets_buffer)
    value_offsets: cython.p_int = _ints(value_offsets_buffer)
    bits: cython.p_uchar = _bytes(validity)
    with cython.nogil:
        nulls = _measure_headers(rows, name_offsets, value_offsets, bits)
    names_buffer, values_buffer = new_buffer(name_offsets[total]), new_buffer(value_offsets[total])
    names: cython.p_uchar = _bytes(names_buffer)
    values: cython.p_uchar = _bytes(values_buffer)
    with cython.nogil:
        _fill_headers(rows, names, name_offsets, values, value_offsets)
    return (
        (total, 0, (None, name_offsets_buffer, names_buffer), ()),
        (total, nulls, (validity, value_offsets_buffer, values_buffer), ()),
    )


@cython.cfunc
def _decoded_headers(rows: Rows):
    """The same where a name is not ASCII and may not even be UTF-8, which an Arrow string must be: by way of Python."""
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t
    names = []
    values = []
    for segment in range(rows.segments):
        for number in range(rows.starts[segment], rows.stops[segment]):
            start = rows.fields[segment][number * 7 + 5]
            size = rows.fields[segment][number * 7 + 6]
            for name, value in decode_headers(bytes(rows.data[segment][start : start + size])):
                names.append(name.encode())
                values.append(value)
    bits = sum([1 << at for at, value in enumerate(values) if value is not None])
    validity = bytearray(bits.to_bytes((len(values) + 7) // 8, "little"))
    return (
        (len(names), 0, (None, *_joined(names)), ()),
        (len(values), values.count(None), (validity, *_joined([value or b"" for value in values])), ()),
    )


def _joined(parts: list):
    """(offsets, data) of a list of bytes."""
    buffer = new_buffer(4 * (len(parts) + 1))
    offsets: cython.p_int = _ints(buffer)
    offsets[0] = 0
    total: cython.int = 0
    number: cython.Py_ssize_t
    for number in range(len(parts)):
        total += len(parts[number])
        offsets[number + 1] = total
    return buffer, bytearray().join(parts)
