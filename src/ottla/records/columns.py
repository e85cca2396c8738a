"""Indexed batches to Arrow arrays: filled without the GIL, no Python object a record, one piece of memory for most of a batch.

Owns the filling of validity bits, offsets and data. Must not know what the columns are called, nor any Arrow library. Invariants:
a buffer is filled as far as its array reaches before it is handed out; a batch was bounds-checked when it was indexed, so
nothing can fail here; the caller keeps each column below 2 GiB.

A column is made by a function of (rows, block, address), which writes an ArrowArray there and its buffers wherever the block has
room for them. The attributes of ``Rows`` are declared in ``columns.pxd``.
Source of the layouts: "Arrow Columnar Format", fixed-size, variable-size binary and list layouts.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.ottla.records.batch import Batch, new_buffer
    from cython.cimports.ottla.records.cdata import Block
    from cython.cimports.ottla.records.processor import prefetch_for_write
else:
    from ottla.records.cdata import Block

import ctypes

from ottla.records.record import decode_headers

COMPILED = cython.compiled


@cython.cfunc
@cython.inline
def _ints(address: cython.longlong, count: cython.Py_ssize_t) -> cython.p_int:
    if cython.compiled:
        return cython.cast(cython.p_int, cython.cast(cython.size_t, address))
    return (ctypes.c_int * count).from_address(address)


@cython.cfunc
@cython.inline
def _longs(address: cython.longlong, count: cython.Py_ssize_t) -> cython.p_longlong:
    if cython.compiled:
        return cython.cast(cython.p_longlong, cython.cast(cython.size_t, address))
    return (ctypes.c_longlong * count).from_address(address)


@cython.cfunc
@cython.inline
def _bytes(address: cython.longlong, count: cython.Py_ssize_t) -> cython.p_uchar:
    if cython.compiled:
        return cython.cast(cython.p_uchar, cython.cast(cython.size_t, address))
    return memoryview((ctypes.c_ubyte * max(1, count)).from_address(address)).cast("B")


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

    It may read and write up to 15 bytes more: ``source`` ends at ``end``, ``target`` must have them to spare. A little ahead of
    where it writes it asks for the two lines of the cache that a later value will need: waiting for them cost a quarter.
    """
    done: cython.Py_ssize_t = 0
    if cython.compiled:
        if size <= 128 and start + size + 16 <= end:
            prefetch_for_write(target + at + 1024)
            prefetch_for_write(target + at + 1088)
            while done < size:
                memcpy(target + at + done, source + start + done, 16)
                done += 16
        else:
            memcpy(target + at, source + start, size)
    else:
        target[at : at + size] = source[start : start + size]


@cython.cfunc
def _total(batch: Batch, start: cython.Py_ssize_t, stop: cython.Py_ssize_t, cell: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The sum of the lengths that stand in one cell of these rows; of a null that is nothing."""
    number: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    for number in range(start, stop):
        if batch.fields[number * 7 + cell] > 0:
            total += batch.fields[number * 7 + cell]
    return total


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
            whole = stop - start == batch.count
            self.key_bytes += batch.key_bytes if whole else _total(batch, start, stop, 2)
            self.value_bytes += batch.value_bytes if whole else _total(batch, start, stop, 4)
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


def export(rows: Rows, fillers):
    """The address of an ArrowArray with a child of each of these, alive until it is released by whoever it was moved to."""
    number: cython.Py_ssize_t
    block: Block = Block((8 * rows.count + 512) * (len(fillers) + 1))
    array: cython.longlong = block.take(80)
    block.array(array, rows.count, 1, len(fillers))
    for number, fill in enumerate(fillers):
        fill(rows, block, block.child(array, number))
    block.hand_out()
    return array


def key_column(rows: Rows, block: Block, array: cython.longlong) -> None:
    """All keys."""
    _binary_column(rows, block, array, 1, rows.key_bytes)


def value_column(rows: Rows, block: Block, array: cython.longlong) -> None:
    """All values."""
    _binary_column(rows, block, array, 3, rows.value_bytes)


@cython.cfunc
def _binary_column(rows: Rows, block: Block, array: cython.longlong, field: cython.int, size: cython.Py_ssize_t):
    """All keys or values: their position and length are where ``field`` says in a row of a batch's table."""
    nulls: cython.Py_ssize_t
    bits: cython.p_uchar
    block.array(array, rows.count, 3, 0)
    offsets: cython.p_int = _ints(block.buffer(array, 1, 4 * (rows.count + 1)), rows.count + 1)
    data: cython.p_uchar = _bytes(block.buffer(array, 2, size + 16), size + 16)
    with cython.nogil:
        nulls = _fill(rows, field, offsets, data)
    if nulls > 0:
        bits = _bytes(block.validity(array, nulls), (rows.count + 7) // 8)
        with cython.nogil:
            _mark(rows, field, bits)


def offset_column(rows: Rows, block: Block, array: cython.longlong) -> None:
    """The records' offsets, 64 bits each."""
    row: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    base: cython.longlong
    fields: cython.p_int
    block.array(array, rows.count, 2, 0)
    target: cython.p_longlong = _longs(block.buffer(array, 1, 8 * rows.count), rows.count)
    with cython.nogil:
        for segment in range(rows.segments):
            fields = rows.fields[segment]
            base = rows.bases[segment]
            for number in range(rows.starts[segment], rows.stops[segment]):
                target[row] = base + fields[number * 7]
                row += 1


def timestamp_column(rows: Rows, block: Block, array: cython.longlong) -> None:
    """The timestamps in microseconds, 64 bits each; one that does not fit becomes the nearest that does."""
    row: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    time: cython.longlong
    latest: cython.longlong = 2**63 // 1000 - 1
    times: cython.p_longlong
    block.array(array, rows.count, 2, 0)
    target: cython.p_longlong = _longs(block.buffer(array, 1, 8 * rows.count), rows.count)
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


def partition_column(rows: Rows, block: Block, array: cython.longlong) -> None:
    """The partition of each record, 32 bits."""
    _repeated_ints(rows, block, array, [(origin.partition, times) for origin, times in rows.origins])


def timestamp_type_column(rows: Rows, block: Block, array: cython.longlong) -> None:
    """Who stamped each record, 32 bits."""
    _repeated_ints(rows, block, array, [(origin.timestamp_type, times) for origin, times in rows.origins])


@cython.cfunc
def _repeated_ints(rows: Rows, block: Block, array: cython.longlong, runs: list):
    """32-bit integers out of (value, how often) pairs."""
    value: cython.int
    times: cython.Py_ssize_t
    number: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    block.array(array, rows.count, 2, 0)
    target: cython.p_int = _ints(block.buffer(array, 1, 4 * rows.count), rows.count)
    for value, times in runs:
        with cython.nogil:
            for number in range(row, row + times):
                target[number] = value
        row += times


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


def topic_column(rows: Rows, block: Block, array: cython.longlong) -> None:
    """The name of each record's topic."""
    times: cython.Py_ssize_t
    size: cython.Py_ssize_t
    number: cython.Py_ssize_t
    text: bytes
    row: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    total: cython.Py_ssize_t = 0
    runs = [(origin.topic.encode(), times) for origin, times in rows.origins]
    for text, times in runs:
        total += len(text) * times
    block.array(array, rows.count, 3, 0)
    offsets: cython.p_int = _ints(block.buffer(array, 1, 4 * (rows.count + 1)), rows.count + 1)
    data: cython.p_uchar = _bytes(block.buffer(array, 2, total), total)
    offsets[0] = 0
    for text, times in runs:
        size = len(text)
        _copy(data, at, text, 0, size)
        with cython.nogil:
            for number in range(1, times + 1):
                offsets[row + number] = at + number * size
            at = _repeat(data, at, size, times)
        row += times


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


def header_column(rows: Rows, block: Block, array: cython.longlong) -> None:
    """All headers, lists of (name, value); a record without any has a null list, as in Spark."""
    ascii_only: cython.bint
    block.array(array, rows.count, 2, 1)
    if not rows.has_headers:
        _no_headers(rows, block, array)
        return
    offsets_at: cython.longlong = block.buffer(array, 1, 4 * (rows.count + 1))
    offsets: cython.p_int = _ints(offsets_at, rows.count + 1)
    with cython.nogil:
        ascii_only = _count_headers(rows, offsets)
    _list_validity(block, array, offsets, rows.count)
    pairs: cython.longlong = block.child(array, 0)
    block.array(pairs, offsets[rows.count], 1, 2)
    if ascii_only:
        _ascii_headers(rows, block, pairs, offsets[rows.count])
    else:
        _decoded_headers(rows, block, pairs)


@cython.cfunc
def _no_headers(rows: Rows, block: Block, array: cython.longlong):
    """Null lists throughout: what buffers there must be are the same zeros."""
    number: cython.Py_ssize_t
    zeros: cython.longlong = block.zeros(4 * (rows.count + 1))
    block.count_nulls(array, rows.count)
    block.point(array, 0, zeros)
    block.point(array, 1, zeros)
    pairs: cython.longlong = block.child(array, 0)
    block.array(pairs, 0, 1, 2)
    for number in range(2):
        block.array(block.child(pairs, number), 0, 3, 0)
        block.point(block.child(pairs, number), 1, zeros)
        block.point(block.child(pairs, number), 2, zeros)


@cython.cfunc
def _list_validity(block: Block, array: cython.longlong, offsets: cython.p_int, rows: cython.Py_ssize_t):
    """Validity of the lists, where an empty one counts as null."""
    number: cython.Py_ssize_t
    nulls: cython.Py_ssize_t = 0
    for number in range(rows):
        nulls += offsets[number + 1] == offsets[number]
    if nulls == 0:
        return
    bits: cython.p_uchar = _bytes(block.validity(array, nulls), (rows + 7) // 8)
    for number in range(rows):
        if offsets[number + 1] > offsets[number]:
            bits[number // 8] |= 1 << (number % 8)


@cython.cfunc
def _ascii_headers(rows: Rows, block: Block, pairs: cython.longlong, total: cython.Py_ssize_t):
    """Names and values copied as they lie."""
    nulls: cython.Py_ssize_t
    name: cython.longlong = block.child(pairs, 0)
    value: cython.longlong = block.child(pairs, 1)
    block.array(name, total, 3, 0)
    block.array(value, total, 3, 0)
    name_offsets: cython.p_int = _ints(block.buffer(name, 1, 4 * (total + 1)), total + 1)
    value_offsets: cython.p_int = _ints(block.buffer(value, 1, 4 * (total + 1)), total + 1)
    bits: cython.p_uchar = _bytes(block.validity(value, 0), (total + 7) // 8)
    with cython.nogil:
        nulls = _measure_headers(rows, name_offsets, value_offsets, bits)
    block.count_nulls(value, nulls)
    names: cython.p_uchar = _bytes(block.buffer(name, 2, name_offsets[total]), name_offsets[total])
    values: cython.p_uchar = _bytes(block.buffer(value, 2, value_offsets[total]), value_offsets[total])
    with cython.nogil:
        _fill_headers(rows, names, name_offsets, values, value_offsets)


@cython.cfunc
def _decoded_headers(rows: Rows, block: Block, pairs: cython.longlong):
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
    _joined(block, block.child(pairs, 0), names)
    _joined(block, block.child(pairs, 1), values)


@cython.cfunc
def _joined(block: Block, array: cython.longlong, parts: list):
    """An array of a list of bytes or ``None``."""
    number: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(parts)
    total: cython.int = 0
    joined: bytes = b"".join([part or b"" for part in parts])
    block.array(array, count, 3, 0)
    offsets: cython.p_int = _ints(block.buffer(array, 1, 4 * (count + 1)), count + 1)
    bits: cython.p_uchar = _bytes(block.validity(array, parts.count(None)), (count + 7) // 8)
    _copy(_bytes(block.buffer(array, 2, len(joined)), len(joined)), 0, joined, 0, len(joined))
    offsets[0] = 0
    for number, part in enumerate(parts):
        if part is not None:
            bits[number // 8] |= 1 << (number % 8)
            total += len(part)
        offsets[number + 1] = total
