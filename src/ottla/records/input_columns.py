"""Reads columns of Arrow arrays into tables of 64-bit numbers without the GIL: where each value is, and how long.

Owns the layouts of arrays: offsets, validity bits, dictionaries, views. Must not know what the columns mean. Invariants: memory
of an array is read only within its offset and length; a null has the size -1. Offsets that descend, and indices beyond a dictionary
or the buffers of views, are reported: a damaged file has them, and a record of a negative size would block a partition's readers.
Nothing tells how long a buffer of values is, so an offset beyond it is trusted, as by all Arrow libraries.

A table has several cells a row (``stride``); a function fills one or two of them. The attributes of ``Column`` are declared in
``input_columns.pxd``. Kinds are those of ``arrow_types``. Sources: "Arrow Columnar Format", "The Arrow C data interface".
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.ottla.records.batch import new_buffer
    from cython.cimports.ottla.records.memory import address_of, bytes_at, ints_at, longs_at
else:
    from ottla.records.batch import new_buffer
    from ottla.records.memory import address_of, bytes_at, ints_at, longs_at

COMPILED = cython.compiled


class Column:
    """One array. ``shift`` is the offset of the struct that it is a child of, which comes on top of its own."""

    def __init__(self, address, kind, shift) -> None:
        words: cython.p_longlong = longs_at(address, 10)
        count: cython.Py_ssize_t = words[3]
        self.kind, self.width, inner, places = kind
        self.offset = words[2] + shift
        self.end = words[2] + words[0]
        self.buffers = words[5]
        buffers: cython.p_longlong = longs_at(self.buffers, count)
        # null_count, words[1], may be -1: not computed
        self.bits = buffers[0] if count > 0 and words[1] != 0 else 0
        self.first = buffers[1] if count > 1 else 0
        self.second = buffers[2] if count > 2 else 0
        self.children = []
        self.kept = None
        self.cells = 0
        self.entries = count if self.kind == 4 else 0  # the number of buffers; of a dictionary, that of values
        if self.kind == 5:
            self._read_dictionary(Column(words[7], inner[0], 0), longs_at(words[7], 1)[0])
        elif places:
            self.children = [
                Column(longs_at(words[6], words[4])[place], kind, self.offset) for place, kind in zip(places, inner, strict=True)
            ]
        elif inner:
            self.children = [Column(longs_at(words[6], 1)[0], inner[0], 0)]
            self.entries = longs_at(longs_at(words[6], 1)[0], 1)[0]  # of lists: the number of items

    def _read_dictionary(self, values: Column, count):
        self.kept = new_buffer(16 * count + 8)
        self.cells = address_of(self.kept)
        self.entries = count
        if fill_cells(values, 0, count, longs_at(self.cells, 2 * count), 0, 2) >= 0:
            raise ValueError("the Arrow data is damaged: a dictionary has offsets that descend")


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_null(column: Column, bits: cython.p_uchar, at: cython.Py_ssize_t) -> cython.bint:
    """Whether the value at this place is null; ``bits`` are those of the column."""
    return column.bits != 0 and not bits[at // 8] >> at % 8 & 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def bits_of(column: Column) -> cython.p_uchar:
    """The validity bits of a column that has any."""
    return bytes_at(column.bits, (column.end + 7) // 8)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def mark_nulls(
    column: Column,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    cells: cython.p_longlong,
    at: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write -1 to this cell of each row that is null; return the first of these rows, or -1."""
    row: cython.Py_ssize_t
    found: cython.Py_ssize_t = -1
    bits: cython.p_uchar
    if column.bits != 0:
        bits = bits_of(column)
        for row in range(count):
            if is_null(column, bits, column.offset + start + row):
                cells[row * stride + at] = -1
                if found < 0:
                    found = row
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill_cells(
    column: Column,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    cells: cython.p_longlong,
    at: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write the address and the size of ``count`` binary values, from ``start`` on, to the cells ``at`` and after it.

    Return the first row with offsets or an index that cannot be, or -1. Then the cells have no meaning.
    """
    row: cython.Py_ssize_t
    found: cython.Py_ssize_t = -1
    first: cython.Py_ssize_t = column.offset + start
    ints: cython.p_int
    longs: cython.p_longlong
    if count == 0:
        return -1
    if column.kind == 1:
        ints = ints_at(column.first, column.end + 1)
        if ints[first] < 0:
            return 0
        for row in range(count):
            if ints[first + row + 1] < ints[first + row]:
                return row
            cells[row * stride + at] = column.second + ints[first + row]
            cells[row * stride + at + 1] = ints[first + row + 1] - ints[first + row]
    elif column.kind == 2:
        longs = longs_at(column.first, column.end + 1)
        if longs[first] < 0:
            return 0
        for row in range(count):
            if longs[first + row + 1] < longs[first + row]:
                return row
            cells[row * stride + at] = column.second + longs[first + row]
            cells[row * stride + at + 1] = longs[first + row + 1] - longs[first + row]
    elif column.kind == 3:
        for row in range(count):
            cells[row * stride + at] = column.first + (first + row) * column.width
            cells[row * stride + at + 1] = column.width
    elif column.kind == 4:
        found = _fill_from_views(column, first, count, cells, at, stride)
    elif column.kind == 5:
        found = _fill_from_dictionary(column, first, count, cells, at, stride)
    else:
        for row in range(count):
            cells[row * stride + at + 1] = -1
    mark_nulls(column, start, count, cells, at + 1, stride)
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_from_views(
    column: Column,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    cells: cython.p_longlong,
    at: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A view has 16 bytes: the size, and up to 12 bytes of value; or 4 of them, the number of a buffer, and the place there.

    After validity, views and the buffers of values, the last buffer has the sizes of these.
    """
    row: cython.Py_ssize_t
    view: cython.Py_ssize_t
    buffer: cython.Py_ssize_t
    last: cython.longlong
    bits: cython.p_uchar = bits_of(column)
    ints: cython.p_int = ints_at(column.first, 4 * column.end)
    buffers: cython.p_longlong = longs_at(column.buffers, column.entries)
    for row in range(count):
        view = 4 * (first + row)
        if is_null(column, bits, first + row):
            continue
        cells[row * stride + at + 1] = ints[view]
        if ints[view] < 0:
            return row
        if ints[view] <= 12:
            cells[row * stride + at] = column.first + 4 * view + 4
            continue
        buffer = ints[view + 2]
        if buffer < 0 or buffer + 3 >= column.entries or ints[view + 3] < 0:
            return row
        last = ints[view + 3]
        if last + ints[view] > longs_at(buffers[column.entries - 1], column.entries - 3)[buffer]:
            return row
        cells[row * stride + at] = buffers[buffer + 2] + ints[view + 3]
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_from_dictionary(
    column: Column,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    cells: cython.p_longlong,
    at: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    row: cython.Py_ssize_t
    place: cython.Py_ssize_t
    byte: cython.Py_ssize_t
    index: cython.longlong
    part: cython.longlong
    bits: cython.p_uchar = bits_of(column)
    indices: cython.p_uchar = bytes_at(column.first, column.end * column.width)
    values: cython.p_longlong = longs_at(column.cells, 2 * column.entries)
    for row in range(count):
        if is_null(column, bits, first + row):
            continue
        index = 0
        place = (first + row) * column.width
        for byte in range(column.width):
            part = indices[place + byte]
            index |= part << 8 * byte
        if index < 0 or index >= column.entries:
            return row
        cells[row * stride + at] = values[2 * index]
        cells[row * stride + at + 1] = values[2 * index + 1]
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill_ranges(
    column: Column,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    cells: cython.p_longlong,
    at: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write the first item and the number of items of ``count`` lists, of which a null has 0, to the cells ``at`` and after it.

    Return the first row with offsets that cannot be, or -1. Then the cells have no meaning.
    """
    row: cython.Py_ssize_t
    first: cython.Py_ssize_t = column.offset + start
    ints: cython.p_int
    longs: cython.p_longlong
    items: cython.longlong = column.entries
    bits: cython.p_uchar = bits_of(column)
    if column.kind == 1:
        ints = ints_at(column.first, column.end + 1)
        for row in range(count):
            if ints[first + row] < 0 or ints[first + row + 1] < ints[first + row] or ints[first + row + 1] > items:
                return row
            cells[row * stride + at] = ints[first + row]
            cells[row * stride + at + 1] = ints[first + row + 1] - ints[first + row]
    elif column.kind == 2:
        longs = longs_at(column.first, column.end + 1)
        for row in range(count):
            if longs[first + row] < 0 or longs[first + row + 1] < longs[first + row] or longs[first + row + 1] > items:
                return row
            cells[row * stride + at] = longs[first + row]
            cells[row * stride + at + 1] = longs[first + row + 1] - longs[first + row]
    for row in range(count):
        if column.kind == 0 or is_null(column, bits, first + row):
            cells[row * stride + at + 1] = 0
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill_numbers(
    column: Column,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    cells: cython.p_longlong,
    at: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
    null: cython.longlong,
) -> cython.Py_ssize_t:
    """Write ``count`` numbers of 32 or 64 bits to this cell, or ``null``; return the first row with a negative number, or -1."""
    row: cython.Py_ssize_t
    found: cython.Py_ssize_t = -1
    first: cython.Py_ssize_t = column.offset + start
    bits: cython.p_uchar = bits_of(column)
    wide: cython.bint = column.kind == 7
    ints: cython.p_int = ints_at(column.first, column.end)
    longs: cython.p_longlong = longs_at(column.first, column.end)
    number: cython.longlong
    for row in range(count):
        if column.kind == 0 or is_null(column, bits, first + row):
            cells[row * stride + at] = null
            continue
        number = longs[first + row] if wide else ints[first + row]
        cells[row * stride + at] = number
        if number < 0 and found < 0:
            found = row
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill_milliseconds(
    column: Column,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    cells: cython.p_longlong,
    at: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
    null: cython.longlong,
) -> cython.Py_ssize_t:
    """Write ``count`` timestamps in milliseconds to this cell, or ``null``; return the first row for which that fails, or -1.

    Fractions are cut off. A timestamp may be -1 ms, which is Kafka's "none", but not less.
    """
    row: cython.Py_ssize_t
    time: cython.longlong
    unit: cython.longlong = column.width
    most: cython.longlong = 9223372036854775
    first: cython.Py_ssize_t = column.offset + start
    bits: cython.p_uchar = bits_of(column)
    times: cython.p_longlong = longs_at(column.first, column.end)
    for row in range(count):
        if column.kind == 0 or is_null(column, bits, first + row):
            cells[row * stride + at] = null
            continue
        time = times[first + row]
        if unit < 0:
            if time < 0 or time > most:
                return row
            time *= 1000
        elif time >= 0:
            time = time // unit
        elif time < -unit:
            return row
        else:
            time = -1
        cells[row * stride + at] = time
    return -1
