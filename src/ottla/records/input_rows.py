"""Encodes rows of Arrow arrays from tables of 64-bit numbers: the loops of ``arrow_input``, none of which touches a Python object.

Owns the meaning of the cells. Must not know arrays, nor where the tables come from. Invariant: nothing is written to a batch beyond
its room.

The cells of the tables are:

* a row (13): key (address, size), value (address, size), topic (address, size), slot, timestamp, headers (first, count, bytes),
  size of the record without its two deltas, number of the topic. The slot is the partition, or -1, until ``place_rows``.
* a header (4): name (address, size), value (address, size).
* a slot (7), which is a partition of a topic: address of its batch, size, room, count, base timestamp, maximum timestamp, bytes of
  the rows of the window.
* a topic (4): its first slot, number of partitions, slot for rows without a key, bytes of those of the window. The slot of such a
  row is -1 - the number of its topic, since that of the topic changes.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcmp
    from cython.cimports.ottla.records.memory import bytes_at, copy
    from cython.cimports.ottla.records.murmur2 import hash_of_key
    from cython.cimports.ottla.records.varint import put_varint, varint_size
else:
    from ottla.records.memory import bytes_at, copy
    from ottla.records.murmur2 import hash_of_key
    from ottla.records.varint import put_varint, varint_size

COMPILED = cython.compiled


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _same(first: cython.longlong, second: cython.longlong, size: cython.Py_ssize_t) -> cython.bint:
    """Whether the bytes at two addresses are the same."""
    if cython.compiled:
        return memcmp(bytes_at(first, size), bytes_at(second, size), size) == 0
    return bytes_at(first, size)[:size] == bytes_at(second, size)[:size]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def match_topics(
    rows: cython.p_longlong, row: cython.Py_ssize_t, count: cython.Py_ssize_t, names: cython.p_longlong, known: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Find the number of each row's topic by its name; return the first row whose topic is null or not among ``names``."""
    number: cython.Py_ssize_t = 0
    cell: cython.Py_ssize_t
    size: cython.Py_ssize_t
    while row < count:
        cell = 13 * row
        size = rows[cell + 5]
        if number >= known or size != names[2 * number + 1] or not _same(rows[cell + 4], names[2 * number], size):
            number = 0
            while number < known and (size != names[2 * number + 1] or not _same(rows[cell + 4], names[2 * number], size)):
                number += 1
            if number == known:
                return row
        rows[cell + 12] = number
        row += 1
    return row


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_topic(rows: cython.p_longlong, count: cython.Py_ssize_t, number: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the first row of a topic, or -1."""
    row: cython.Py_ssize_t
    for row in range(count):
        if rows[13 * row + 12] == number:
            return row
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def place_rows(
    rows: cython.p_longlong, row: cython.Py_ssize_t, count: cython.Py_ssize_t, topics: cython.p_longlong, ignores_keys: cython.bint
) -> cython.Py_ssize_t:
    """Turn the partition of each row, or -1, into its slot; return the first row whose partition does not exist."""
    cell: cython.Py_ssize_t
    topic: cython.Py_ssize_t
    number: cython.longlong
    key: cython.p_uchar
    while row < count:
        cell = 13 * row
        topic = 4 * rows[cell + 12]
        number = rows[cell + 6]
        if number >= topics[topic + 1]:
            return row
        if number < 0 and rows[cell + 1] >= 0 and not ignores_keys:
            key = bytes_at(rows[cell], rows[cell + 1])
            number = (hash_of_key(key, rows[cell + 1]) & 0x7FFFFFFF) % topics[topic + 1]
        rows[cell + 6] = -1 - rows[cell + 12] if number < 0 else topics[topic] + number
        row += 1
    return row


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def measure_headers(rows: cython.p_longlong, count: cython.Py_ssize_t, headers: cython.p_longlong) -> cython.Py_ssize_t:
    """Set the bytes of each row's headers; return the first row with a header that is null or has no name, or -1."""
    row: cython.Py_ssize_t
    header: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for row in range(count):
        size = varint_size(rows[13 * row + 9])
        for header in range(rows[13 * row + 8], rows[13 * row + 8] + rows[13 * row + 9]):
            if headers[4 * header + 1] < 0:
                return row
            size += varint_size(headers[4 * header + 1]) + headers[4 * header + 1] + varint_size(headers[4 * header + 3])
            if headers[4 * header + 3] > 0:
                size += headers[4 * header + 3]
        rows[13 * row + 10] = size
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def measure_rows(
    rows: cython.p_longlong,
    count: cython.Py_ssize_t,
    slots: cython.p_longlong,
    topics: cython.p_longlong,
    most: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Set the size of each row's record, and add it to those of its slot; return the first that is too large, or -1."""
    row: cython.Py_ssize_t
    cell: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for row in range(count):
        cell = 13 * row
        size = 1 + rows[cell + 10] + varint_size(rows[cell + 1]) + varint_size(rows[cell + 3])
        if rows[cell + 1] > 0:
            size += rows[cell + 1]
        if rows[cell + 3] > 0:
            size += rows[cell + 3]
        if size + 81 > most:
            return row
        rows[cell + 11] = size
        if rows[cell + 6] < 0:
            topics[4 * (-1 - rows[cell + 6]) + 3] += size + 8
        else:
            slots[7 * rows[cell + 6] + 6] += size + 8
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def count_sharers(
    slots: cython.p_longlong, slot_count: cython.Py_ssize_t, topics: cython.p_longlong, topic_count: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the number of batches among which memory is divided: those that are being filled or get rows of the window."""
    place: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    for place in range(slot_count):
        if slots[7 * place + 2] > 0 or slots[7 * place + 6] > 0:
            found += 1
    for place in range(topic_count):
        if topics[4 * place + 3] > 0:
            found += 1
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def sum_rooms(slots: cython.p_longlong, slot_count: cython.Py_ssize_t) -> cython.longlong:
    """Return the sum of the rooms of all slots."""
    place: cython.Py_ssize_t
    found: cython.longlong = 0
    for place in range(slot_count):
        found += slots[7 * place + 2]
    return found


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_value(data: cython.p_uchar, at: cython.Py_ssize_t, source: cython.longlong, size: cython.longlong) -> cython.Py_ssize_t:
    """Write the size of a value, which is -1 for null, and the value; return the position after it."""
    at = put_varint(data, at, size)
    if size > 0:
        copy(data, at, bytes_at(source, size), 0, size)
        return at + size
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def encode_rows(
    rows: cython.p_longlong,
    row: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    headers: cython.p_longlong,
    slots: cython.p_longlong,
    topics: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Encode rows from ``row`` on; return the first one for which its batch has no room."""
    cell: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    header: cython.Py_ssize_t
    at: cython.Py_ssize_t
    body: cython.longlong
    delta: cython.longlong
    data: cython.p_uchar
    while row < count:
        cell = 13 * row
        slot = 7 * (rows[cell + 6] if rows[cell + 6] >= 0 else topics[4 * (-1 - rows[cell + 6]) + 2])
        delta = rows[cell + 7] - slots[slot + 4]
        body = rows[cell + 11] + varint_size(delta) + varint_size(slots[slot + 3])
        if slots[slot + 1] + body + varint_size(body) > slots[slot + 2]:
            return row
        data = bytes_at(slots[slot], slots[slot + 2])
        at = put_varint(data, slots[slot + 1], body)
        data[at] = 0  # attributes; none are defined
        at = put_varint(data, at + 1, delta)
        at = put_varint(data, at, slots[slot + 3])
        at = _put_value(data, at, rows[cell], rows[cell + 1])
        at = _put_value(data, at, rows[cell + 2], rows[cell + 3])
        at = put_varint(data, at, rows[cell + 9])
        for header in range(rows[cell + 8], rows[cell + 8] + rows[cell + 9]):
            at = _put_value(data, at, headers[4 * header], headers[4 * header + 1])
            at = _put_value(data, at, headers[4 * header + 2], headers[4 * header + 3])
        slots[slot + 1] = at
        slots[slot + 3] += 1
        if rows[cell + 7] > slots[slot + 5]:
            slots[slot + 5] = rows[cell + 7]
        row += 1
    return row
