"""A fingerprint of rows of Arrow data that does not depend on their order.

Owns the hash of a row and its sum. Must not know what the fingerprint is compared with. Invariants: the same rows have the same
fingerprint in any order, in any division into arrays, and in any of the Arrow types that a column may have; it is the same in each
version of Ottla, since it is stored.

A row's hash is that of its value, key, topic, partition and headers, one after the other, by Austin Appleby's MurmurHash64A with
the hash so far as its seed. The fingerprint is the sum of all, modulo 2 to the power of 64. It tells accidents apart, not attacks.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.ottla.records.batch import new_buffer
    from cython.cimports.ottla.records.input_columns import Column, fill_cells, fill_numbers, fill_ranges
    from cython.cimports.ottla.records.memory import address_of, bytes_at, longs_at
else:
    from ottla.records.batch import new_buffer
    from ottla.records.input_columns import Column, fill_cells, fill_numbers, fill_ranges
    from ottla.records.memory import address_of, bytes_at, longs_at

from ottla.records.arrow_stream import ArrowStream
from ottla.records.arrow_types import layout_of

COMPILED = cython.compiled

# Literal numbers below: a row has 3 cells: its hash so far, and a cell's address and size; a header has 4. A window has at most
# 4096 rows, so that its table stays in the cache of a core.


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mixed(word: cython.ulonglong) -> cython.ulonglong:
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    factor: cython.ulonglong = 0xC6A4A7935BD1E995
    word = word * factor & mask
    word ^= word >> 47
    return word * factor & mask


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash(address: cython.longlong, size: cython.Py_ssize_t, seed: cython.ulonglong) -> cython.ulonglong:
    """The hash of bytes. A null has the size -1, and a hash of its own."""
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    factor: cython.ulonglong = 0xC6A4A7935BD1E995
    hash_: cython.ulonglong = seed ^ (size * factor & mask if size >= 0 else mask)
    at: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t
    word: cython.ulonglong
    byte: cython.ulonglong
    data: cython.p_uchar
    if size > 0:
        data = bytes_at(address, size)
        while at + 8 <= size:
            word = 0
            for place in range(8):
                byte = data[at + place]
                word |= byte << 8 * place
            hash_ = (hash_ ^ _mixed(word)) * factor & mask
            at += 8
        if at < size:
            word = 0
            for place in range(size - at):
                byte = data[at + place]
                word |= byte << 8 * place
            hash_ = (hash_ ^ word) * factor & mask
    hash_ ^= hash_ >> 47
    hash_ = hash_ * factor & mask
    return hash_ ^ hash_ >> 47


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _signed(number: cython.ulonglong) -> cython.longlong:
    """The number with the same 64 bits."""
    if cython.compiled:
        return cython.cast(cython.longlong, number)
    return number - (1 << 64) if number >> 63 else number


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _unsigned(number: cython.longlong) -> cython.ulonglong:
    """The number with the same 64 bits."""
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    return number & mask


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_cells(rows: cython.p_longlong, count: cython.Py_ssize_t) -> cython.void:
    """Add the bytes that the cells locate to the hashes."""
    row: cython.Py_ssize_t
    for row in range(count):
        rows[3 * row] = _signed(_hash(rows[3 * row + 1], rows[3 * row + 2], _unsigned(rows[3 * row])))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_numbers(rows: cython.p_longlong, count: cython.Py_ssize_t) -> cython.void:
    """Add the numbers in the cells to the hashes."""
    row: cython.Py_ssize_t
    for row in range(count):
        rows[3 * row] = _signed(_mixed(_unsigned(rows[3 * row]) ^ _mixed(_unsigned(rows[3 * row + 1]))))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_headers(
    rows: cython.p_longlong, count: cython.Py_ssize_t, headers: cython.p_longlong, first: cython.longlong
) -> cython.void:
    """Add the headers, whose ranges are in the cells, to the hashes. ``first``: the one at the beginning of the table."""
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    hash_: cython.ulonglong
    for row in range(count):
        if rows[3 * row + 2] > 0:
            hash_ = _unsigned(rows[3 * row])
            for at in range(rows[3 * row + 1] - first, rows[3 * row + 1] - first + rows[3 * row + 2]):
                hash_ = _hash(headers[4 * at], headers[4 * at + 1], hash_)
                hash_ = _hash(headers[4 * at + 2], headers[4 * at + 3], hash_)
            rows[3 * row] = _signed(hash_)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sum(rows: cython.p_longlong, count: cython.Py_ssize_t, total: cython.ulonglong) -> cython.ulonglong:
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    row: cython.Py_ssize_t
    for row in range(count):
        total = total + _unsigned(rows[3 * row]) & mask
    return total


class RowFingerprint:
    """The number of rows, and their fingerprint. ``topic``: where all rows go, whatever a column ``topic`` has."""

    def __init__(self, topic=None) -> None:
        self.rows = 0
        self.value = 0
        self._topic = topic
        name = bytearray((topic or "").encode())
        self._seed = _signed(_hash(address_of(name) if name else 0, len(name), 0)) if topic is not None else 0
        self._table = new_buffer(8 * 3 * 4096)

    def update(self, data) -> None:
        """Add the rows of Arrow data with the columns of ``send_arrow``, which has accepted them or would.

        Raises ``TypeError`` and ``ValueError`` for data that cannot be rows.
        """
        array: cython.longlong
        start: cython.Py_ssize_t
        total: cython.Py_ssize_t
        stream = ArrowStream(data)
        try:
            layout = layout_of(stream.field, self._topic)
            for array in stream.arrays():
                words: cython.p_longlong = longs_at(array, 10)
                children: cython.p_longlong = longs_at(words[6], words[4])
                columns = {name: Column(children[place], layout.types[name], words[2]) for name, place in layout.places.items()}
                total = words[0]
                for start in range(0, total, 4096):
                    self._add(columns, start, min(4096, total - start))
                self.rows += total
        finally:
            stream.close()

    def _add(self, columns: dict, start: cython.Py_ssize_t, count: cython.Py_ssize_t):
        row: cython.Py_ssize_t
        seed: cython.longlong = self._seed
        column: Column
        rows: cython.p_longlong = longs_at(address_of(self._table), 3 * 4096)
        for row in range(count):
            rows[3 * row] = seed
        for name in ("value", "key", "topic"):
            column = columns.get(name)
            if column is not None:
                _check(name, fill_cells(column, start, count, rows, 1, 3))
                _add_cells(rows, count)
            elif name == "key":
                for row in range(count):
                    rows[3 * row + 2] = -1
                _add_cells(rows, count)
        column = columns.get("partition")
        if column is None:
            for row in range(count):
                rows[3 * row + 1] = -1
        else:
            fill_numbers(column, start, count, rows, 1, 3, -1)
        _add_numbers(rows, count)
        column = columns.get("headers")
        if column is not None:
            self._add_headers(column, start, count)
        self.value = _sum(rows, count, self.value)

    def _add_headers(self, column: Column, start: cython.Py_ssize_t, count: cython.Py_ssize_t):
        row: cython.Py_ssize_t
        first: cython.longlong = -1
        end: cython.longlong = 0
        pair: Column
        rows: cython.p_longlong = longs_at(address_of(self._table), 3 * 4096)
        _check("headers", fill_ranges(column, start, count, rows, 1, 3))
        for row in range(count):
            if rows[3 * row + 2] > 0:
                if first < 0:
                    first = rows[3 * row + 1]
                end = rows[3 * row + 1] + rows[3 * row + 2]
        if first >= 0:
            pair = column.children[0]
            table = new_buffer(32 * (end - first))
            headers: cython.p_longlong = longs_at(address_of(table), 4 * (end - first))
            for at in range(2):
                _check("headers", fill_cells(pair.children[at], first, end - first, headers, 2 * at, 4))
            _add_headers(rows, count, headers, first)


def _check(name, row):
    if row >= 0:
        raise ValueError(f"the Arrow data is damaged: column {name!r} has an offset or an index that cannot be")
