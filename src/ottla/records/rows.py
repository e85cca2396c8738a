"""The rows of Arrow batches: indexed batches divided to fit into Arrow columns, as C arrays for loops without the GIL.

Owns the positions of the rows of one Arrow batch. Must not know columns, nor any Arrow library. Invariants: the rows are in order,
each once; ``Rows`` keeps alive the memory to which it points.

The attributes of ``Rows`` are declared in ``rows.pxd``.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.ottla.records.batch import Batch, new_buffer

COMPILED = cython.compiled


@cython.cfunc
def _total(batch: Batch, start: cython.Py_ssize_t, stop: cython.Py_ssize_t, cell: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The sum of the lengths in one cell of these rows; a null counts 0."""
    number: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    for number in range(start, stop):
        if batch.fields[number * 7 + cell] > 0:
            total += batch.fields[number * 7 + cell]
    return total


class Rows:
    """The rows of one Arrow batch: *segments* of consecutive rows of several batches, as C arrays for loops without the GIL.

    ``origins`` lists (origin, number of its consecutive rows).
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
    """The rows of these parts, in pieces of at most ``max_rows`` rows, whose columns have at most ``max_bytes`` each.

    A single batch that is longer makes a longer column.
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
