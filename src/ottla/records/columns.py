"""Converts indexed batches to Arrow arrays without the GIL, without a Python object per record, and with few allocations.

Owns the filling of validity bits, offsets and data. Must not know the names of columns, nor any Arrow library. Invariants: a buffer
is filled up to the length of its array before it is exported; batches are bounds-checked when they are indexed, so that nothing can
fail here; the caller keeps each column below 2 GiB.

A function of (rows, block, address) creates a column: it writes an ArrowArray to the address, and allocates the buffers from the
block. The column of headers is in ``header_columns``.
Source of the layouts: "Arrow Columnar Format", fixed-size and variable-size binary layouts.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.ottla.records.cdata import Block
    from cython.cimports.ottla.records.memory import bytes_at, copy, ints_at, longs_at
    from cython.cimports.ottla.records.processor import prefetch_for_write
    from cython.cimports.ottla.records.rows import Rows
else:
    from ottla.records.cdata import Block
    from ottla.records.memory import bytes_at, copy, ints_at, longs_at

COMPILED = cython.compiled


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
    """``copy`` in steps of 16 bytes, which is faster for a short value: without a call and a remainder.

    It may read and write up to 15 bytes more: ``source`` ends at ``end``, and ``target`` must have them to spare. It prefetches two
    cache lines for a later value: waiting for them took a quarter of the time.
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
@cython.nogil
@cython.exceptval(check=False)
def _fill(rows: Rows, field: cython.int, offsets: cython.p_int, target: cython.p_uchar) -> cython.Py_ssize_t:
    """Copy the values one after the other, and write the offset after each; return the number of nulls."""
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
    """The address of an ArrowArray with a child of each filler, which is alive until its consumer releases it."""
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
    """All keys or values, whose position and length are at ``field`` in a row of a batch's table."""
    nulls: cython.Py_ssize_t
    bits: cython.p_uchar
    block.array(array, rows.count, 3, 0)
    offsets: cython.p_int = ints_at(block.buffer(array, 1, 4 * (rows.count + 1)), rows.count + 1)
    data: cython.p_uchar = bytes_at(block.buffer(array, 2, size + 16), size + 16)
    with cython.nogil:
        nulls = _fill(rows, field, offsets, data)
    if nulls > 0:
        bits = bytes_at(block.validity(array, nulls), (rows.count + 7) // 8)
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
    target: cython.p_longlong = longs_at(block.buffer(array, 1, 8 * rows.count), rows.count)
    with cython.nogil:
        for segment in range(rows.segments):
            fields = rows.fields[segment]
            base = rows.bases[segment]
            for number in range(rows.starts[segment], rows.stops[segment]):
                target[row] = base + fields[number * 7]
                row += 1


def timestamp_column(rows: Rows, block: Block, array: cython.longlong) -> None:
    """The timestamps in microseconds, 64 bits each; one that does not fit becomes the nearest possible."""
    row: cython.Py_ssize_t = 0
    segment: cython.Py_ssize_t
    number: cython.Py_ssize_t
    time: cython.longlong
    latest: cython.longlong = 2**63 // 1000 - 1
    times: cython.p_longlong
    block.array(array, rows.count, 2, 0)
    target: cython.p_longlong = longs_at(block.buffer(array, 1, 8 * rows.count), rows.count)
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
    """The timestamp type of each record, 32 bits."""
    _repeated_ints(rows, block, array, [(origin.timestamp_type, times) for origin, times in rows.origins])


@cython.cfunc
def _repeated_ints(rows: Rows, block: Block, array: cython.longlong, runs: list):
    """32-bit integers from pairs of a value and its number of repetitions."""
    value: cython.int
    times: cython.Py_ssize_t
    number: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    block.array(array, rows.count, 2, 0)
    target: cython.p_int = ints_at(block.buffer(array, 1, 4 * rows.count), rows.count)
    for value, times in runs:
        with cython.nogil:
            for number in range(row, row + times):
                target[number] = value
        row += times


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _repeat(data: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, times: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Repeat the ``size`` bytes at ``at`` until there are ``times`` copies, doubling their number at each step."""
    done: cython.Py_ssize_t = size
    more: cython.Py_ssize_t
    while done < size * times:
        more = done if done <= size * times - done else size * times - done
        copy(data, at + done, data, at, more)
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
    offsets: cython.p_int = ints_at(block.buffer(array, 1, 4 * (rows.count + 1)), rows.count + 1)
    data: cython.p_uchar = bytes_at(block.buffer(array, 2, total), total)
    offsets[0] = 0
    for text, times in runs:
        size = len(text)
        copy(data, at, text, 0, size)
        with cython.nogil:
            for number in range(1, times + 1):
                offsets[row + number] = at + number * size
            at = _repeat(data, at, size, times)
        row += times
