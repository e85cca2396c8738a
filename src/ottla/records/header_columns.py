"""Converts the headers of indexed batches to one Arrow array of lists of (name, value).

Owns the filling of that column. Must not know its name, nor any Arrow library. Invariants: as in ``columns``; a record without
headers has a null list, as in Spark.

If all names are ASCII there are three passes without Python objects: count, measure, copy. Otherwise Python decodes the names.
Source of the layouts: "Arrow Columnar Format", variable-size list and struct layouts.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.ottla.records.cdata import Block
    from cython.cimports.ottla.records.memory import bytes_at, copy, ints_at
    from cython.cimports.ottla.records.rows import Rows
else:
    from ottla.records.cdata import Block
    from ottla.records.memory import bytes_at, copy, ints_at

from ottla.records.record import decode_headers

COMPILED = cython.compiled


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(data: cython.p_const_uchar, position: cython.Py_ssize_t) -> tuple[cython.int, cython.Py_ssize_t]:
    """A varint of at most 32 bits, which was checked when the batch was indexed, and the position after it."""
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
    """First pass: write the list offset after each row; return whether all names are ASCII."""
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
    """Second pass: write the offsets after each name and value, and the validity bits of values; return the number of nulls."""
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
    """Third pass: copy the bytes of names and values."""
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
                    copy(names, name_offsets[header], data, at, size)
                    at += size
                    size, at = _varint(data, at)
                    if size > 0:
                        copy(values, value_offsets[header], data, at, size)
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
    offsets: cython.p_int = ints_at(offsets_at, rows.count + 1)
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
    """Null lists only: all mandatory buffers share the same zeros."""
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
    """Set the validity of the lists; an empty list is null."""
    number: cython.Py_ssize_t
    nulls: cython.Py_ssize_t = 0
    for number in range(rows):
        nulls += offsets[number + 1] == offsets[number]
    if nulls == 0:
        return
    bits: cython.p_uchar = bytes_at(block.validity(array, nulls), (rows + 7) // 8)
    for number in range(rows):
        if offsets[number + 1] > offsets[number]:
            bits[number // 8] |= 1 << (number % 8)


@cython.cfunc
def _ascii_headers(rows: Rows, block: Block, pairs: cython.longlong, total: cython.Py_ssize_t):
    """Copy names and values unchanged."""
    nulls: cython.Py_ssize_t
    name: cython.longlong = block.child(pairs, 0)
    value: cython.longlong = block.child(pairs, 1)
    block.array(name, total, 3, 0)
    block.array(value, total, 3, 0)
    name_offsets: cython.p_int = ints_at(block.buffer(name, 1, 4 * (total + 1)), total + 1)
    value_offsets: cython.p_int = ints_at(block.buffer(value, 1, 4 * (total + 1)), total + 1)
    bits: cython.p_uchar = bytes_at(block.validity(value, 0), (total + 7) // 8)
    with cython.nogil:
        nulls = _measure_headers(rows, name_offsets, value_offsets, bits)
    block.count_nulls(value, nulls)
    names: cython.p_uchar = bytes_at(block.buffer(name, 2, name_offsets[total]), name_offsets[total])
    values: cython.p_uchar = bytes_at(block.buffer(value, 2, value_offsets[total]), value_offsets[total])
    with cython.nogil:
        _fill_headers(rows, names, name_offsets, values, value_offsets)


@cython.cfunc
def _decoded_headers(rows: Rows, block: Block, pairs: cython.longlong):
    """Decode the headers in Python: a name may be invalid UTF-8, which an Arrow string must not be."""
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
    """An array of a list whose items are bytes or ``None``."""
    number: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(parts)
    total: cython.int = 0
    joined: bytes = b"".join([part or b"" for part in parts])
    block.array(array, count, 3, 0)
    offsets: cython.p_int = ints_at(block.buffer(array, 1, 4 * (count + 1)), count + 1)
    bits: cython.p_uchar = bytes_at(block.validity(array, parts.count(None)), (count + 7) // 8)
    copy(bytes_at(block.buffer(array, 2, len(joined)), len(joined)), 0, joined, 0, len(joined))
    offsets[0] = 0
    for number, part in enumerate(parts):
        if part is not None:
            bits[number // 8] |= 1 << (number % 8)
            total += len(part)
        offsets[number + 1] = total
