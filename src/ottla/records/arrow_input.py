"""Encodes the rows of Arrow arrays into batches for the partitions of topics, without the GIL and without an object per row.

Owns the tables of a window of rows, the choice of each row's partition, and the batches that are being filled. Must not know
requests, threads, nor any Arrow library. Invariants: the rows of a partition are encoded in their order, each once; a row is
encoded when its whole window was checked; the memory of every batch is reserved in the accumulator, and given back if the call
fails.

The rows of an array are handled in windows: their values are located, their partitions found, then they are encoded until a batch
is full. ``steps`` yields what it waits for. The cells of the tables are explained in ``input_rows``; the attributes of
``RowEncoder`` are declared in ``arrow_input.pxd``.

Only the encoding, which takes most of the time, runs without the GIL: to get it back from a busy thread takes up to 5 ms, so that
once a window is enough.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.ottla.records.accumulator import RecordAccumulator
    from cython.cimports.ottla.records.batch import new_buffer
    from cython.cimports.ottla.records.input_columns import (
        Column,
        fill_cells,
        fill_milliseconds,
        fill_numbers,
        fill_ranges,
        mark_nulls,
    )
    from cython.cimports.ottla.records.input_rows import (
        count_sharers,
        encode_rows,
        find_topic,
        match_topics,
        measure_headers,
        measure_rows,
        place_rows,
        sum_rooms,
    )
    from cython.cimports.ottla.records.memory import address_of, bytes_at, longs_at
    from cython.cimports.ottla.records.producer_queues import ProducerBatch, TopicQueues
else:
    from ottla.records.accumulator import RecordAccumulator
    from ottla.records.batch import new_buffer
    from ottla.records.input_columns import Column, fill_cells, fill_milliseconds, fill_numbers, fill_ranges, mark_nulls
    from ottla.records.input_rows import (
        count_sharers,
        encode_rows,
        find_topic,
        match_topics,
        measure_headers,
        measure_rows,
        place_rows,
        sum_rooms,
    )
    from ottla.records.memory import address_of, bytes_at, longs_at
    from ottla.records.producer_queues import ProducerBatch, TopicQueues

from ottla.errors import ClosedError, MessageTooLargeError
from ottla.records.arrow_delivery import ArrowDelivery, MemoryShort, MissingPartitions
from ottla.records.arrow_stream import ArrowStream
from ottla.records.arrow_types import layout_of
from ottla.records.batch_states import BatchState

COMPILED = cython.compiled

_OPEN = BatchState.OPEN

# Literal numbers below: a row has 13 cells, a header 4, a slot 7, a topic 4; a window has at most 4096 rows, so that its table
# stays in the cache of a core.


class RowEncoder:
    """One call of ``send_arrow``. ``topic``: where all rows go, whatever a column ``topic`` has.

    ``delivery`` has the batches that were accepted so far. Raises ``TypeError`` and ``ValueError`` for data that cannot be rows.
    """

    def __init__(self, accumulator: RecordAccumulator, data, topic=None) -> None:
        if topic is not None and (not isinstance(topic, str) or not topic):
            raise TypeError(f"topic must be a name, not {topic!r}")
        self.delivery = ArrowDelivery(accumulator)
        self.rows_done = 0
        self._accumulator = accumulator
        self._available = accumulator._memory  # without that of other calls, which is known when memory is short
        self._topic = topic
        self._stream = ArrowStream(data)
        try:
            self._layout = layout_of(self._stream.field, topic)
        except BaseException:
            self._stream.close()
            raise
        self._rows = new_buffer(8 * 13 * 4096)
        self._headers = bytearray(32)
        self._topic_names = []
        self._lay_out()
        if topic is not None:
            self._add_topic(topic.encode())

    def steps(self):
        """Add all rows to the queues of the accumulator; yield ``MissingPartitions`` or ``MemoryShort`` each time it must wait.

        Raises ``ValueError`` and ``MessageTooLargeError``, which name the row, the stream's own error as ``OttlaError``, and
        ``ClosedError``. Batches that were accepted before stay accepted.
        """
        array: cython.longlong
        start: cython.Py_ssize_t
        count: cython.Py_ssize_t
        total: cython.Py_ssize_t
        row: cython.Py_ssize_t
        try:
            for array in self._stream.arrays():
                total = longs_at(array, 10)[0]
                columns = self._open_columns(array)
                start = 0
                while start < total:
                    count = min(4096, total - start)
                    self._locate(columns, start, count)
                    while True:
                        missing = self._find_slots(columns, start, count)
                        if not missing:
                            break
                        self.finish_all()
                        yield MissingPartitions(self._accumulator._mono(), missing)
                        self._lay_out()
                    self._measure(count)
                    row = 0
                    while row < count:
                        row = self._encode(row, count)
                        if row < count:
                            size = self._make_room(row, count, total - start)
                            if size > 0:
                                yield MemoryShort(self._accumulator._mono(), size, self.delivery, self._held())
                    start += count
                    self.rows_done += count
            self.finish_all()
        finally:
            try:
                self._drop_all()
            finally:
                self._stream.close()

    def _open_columns(self, array: cython.longlong):
        """Name -> column. Raises ``ValueError`` if a whole row is null."""
        words: cython.p_longlong = longs_at(array, 10)
        whole: Column = Column(array, (0, 0, (), ()), 0)
        flags = bytearray(8 * words[0] + 8)
        row = mark_nulls(whole, 0, words[0], longs_at(address_of(flags), words[0]), 0, 1) if whole.bits != 0 else -1
        if row >= 0:
            raise ValueError(f"row {self.rows_done + row} is null as a whole")
        children: cython.p_longlong = longs_at(words[6], words[4])
        return {name: Column(children[place], self._layout.types[name], words[2]) for name, place in self._layout.places.items()}

    # -- the table of a window ----------------------------------------------------------------------------------------------

    def _locate(self, columns: dict, start: cython.Py_ssize_t, count: cython.Py_ssize_t):
        """Locate the values of the rows. Raises ``ValueError`` for timestamps and headers that cannot be."""
        row: cython.Py_ssize_t
        now: cython.longlong = self._accumulator._nanoseconds() // 1000000
        rows: cython.p_longlong = longs_at(address_of(self._rows), 13 * 4096)
        column: Column = columns["value"]
        self._check("value", fill_cells(column, start, count, rows, 2, 13))
        column = columns.get("key")
        if column is not None:
            self._check("key", fill_cells(column, start, count, rows, 0, 13))
        else:
            for row in range(count):
                rows[13 * row + 1] = -1
        column = columns.get("topic")
        if column is not None:
            self._check("topic", fill_cells(column, start, count, rows, 4, 13))
        column = columns.get("timestamp")
        if column is None:
            for row in range(count):
                rows[13 * row + 7] = now
        else:
            row = fill_milliseconds(column, start, count, rows, 7, 13, now)
            if row >= 0:
                raise ValueError(f"row {self.rows_done + row}: the timestamp is before 1970, or beyond 64 bits of milliseconds")
        column = columns.get("headers")
        if column is not None:
            self._locate_headers(column, start, count)
        else:
            for row in range(count):
                rows[13 * row + 8] = rows[13 * row + 9] = 0
                rows[13 * row + 10] = 1

    def _check(self, name, row: cython.Py_ssize_t):
        if row >= 0:
            place = self.rows_done + row
            raise ValueError(f"row {place}: the Arrow data is damaged: column {name!r} has an offset or an index that cannot be")

    def _locate_headers(self, column: Column, start: cython.Py_ssize_t, count: cython.Py_ssize_t):
        row: cython.Py_ssize_t
        first: cython.longlong = -1
        end: cython.longlong = 0
        total: cython.Py_ssize_t
        pair: Column
        rows: cython.p_longlong = longs_at(address_of(self._rows), 13 * 4096)
        self._check("headers", fill_ranges(column, start, count, rows, 8, 13))
        for row in range(count):
            if rows[13 * row + 9] > 0:
                if first < 0:
                    first = rows[13 * row + 8]
                end = rows[13 * row + 8] + rows[13 * row + 9]
        for row in range(count):
            rows[13 * row + 8] = rows[13 * row + 8] - first if rows[13 * row + 9] > 0 else 0
        total = end - first if first >= 0 else 0
        if len(self._headers) < 32 * total:
            self._headers = new_buffer(32 * total)
        headers: cython.p_longlong = longs_at(address_of(self._headers), 4 * total)
        if total > 0:
            pair = column.children[0]
            for at in range(2):
                if fill_cells(pair.children[at], first, total, headers, 2 * at, 4) >= 0:
                    raise ValueError(f"the Arrow data is damaged: headers after row {self.rows_done} have offsets that cannot be")
            mark_nulls(pair, first, total, headers, 1, 4)
        row = measure_headers(rows, count, headers)
        if row >= 0:
            raise ValueError(f"row {self.rows_done + row}: a header is null, or its key is")

    # -- the slot of each row -----------------------------------------------------------------------------------------------

    def _lay_out(self):
        """Make the tables of topics and slots, with the partitions that exist now. No batch may be open."""
        names, self._topic_names = self._topic_names, []
        self._names = []
        self._name_table = bytearray()
        self._topics = bytearray()
        self._slots = bytearray()
        self._queues = []
        self._batches = []
        for name in names:
            self._add_topic(name)

    def _add_topic(self, name: bytes):
        """Append a topic and its partitions to the tables."""
        queues: TopicQueues = self._accumulator.topics.get(name.decode())
        count: cython.Py_ssize_t = 0 if queues is None else queues.count
        kept = bytearray(name)
        first: cython.Py_ssize_t = len(self._queues)
        self._topic_names.append(name)
        self._names.append(kept)
        self._name_table += bytes(16)
        self._topics += bytes(32)
        self._slots += bytes(56 * count)
        number: cython.Py_ssize_t = len(self._names) - 1
        names: cython.p_longlong = longs_at(address_of(self._name_table), 2 * number + 2)
        names[2 * number] = address_of(kept)
        names[2 * number + 1] = len(kept)
        topics: cython.p_longlong = longs_at(address_of(self._topics), 4 * number + 4)
        topics[4 * number] = first
        topics[4 * number + 1] = count
        topics[4 * number + 2] = first
        if count > 0:
            self._queues += queues.queues[:count]
            self._batches += [None] * count
            self._choose_sticky(number)

    def _choose_sticky(self, number: cython.Py_ssize_t):
        """Choose the partition of a topic's rows without a key."""
        topics: cython.p_longlong = longs_at(address_of(self._topics), 4 * number + 4)
        queues: TopicQueues = self._accumulator.topics[self._topic_names[number].decode()]
        partition: cython.Py_ssize_t = self._accumulator.sticky_partition(queues)
        if partition >= 0:  # otherwise the topic was forgotten a moment ago, and the rows of this window stay where they are
            topics[4 * number + 2] = topics[4 * number] + partition % topics[4 * number + 1]  # it may have more than a moment ago

    def _find_slots(self, columns: dict, start: cython.Py_ssize_t, count: cython.Py_ssize_t):
        """Find the slot of each row; return the partitions that do not exist: (topic, partition) -> the first row for it."""
        row: cython.Py_ssize_t
        bad: cython.Py_ssize_t = -1
        ignores_keys: cython.bint = self._accumulator._ignores_keys
        rows: cython.p_longlong = longs_at(address_of(self._rows), 13 * 4096)
        self._number_topics(count)
        topics: cython.p_longlong = longs_at(address_of(self._topics), 4 * len(self._names))
        missing = {}
        for number in range(len(self._topic_names)):
            row = self._first_unknown(number, count)
            if row >= 0:
                missing[self._topic_names[number].decode(), 0] = self.rows_done + row
        if missing:
            return missing
        column: Column = columns.get("partition")
        if column is not None:
            bad = fill_numbers(column, start, count, rows, 6, 13, -1)
        else:
            for row in range(count):
                rows[13 * row + 6] = -1
        if bad >= 0:
            raise ValueError(f"row {self.rows_done + bad}: the partition is {rows[13 * bad + 6]}; it must be 0 or more, or null")
        if self._accumulator._partitioner is not None:
            self._call_partitioner(count)
        row = 0
        while row < count:
            row = place_rows(rows, row, count, topics, ignores_keys)
            if row < count:
                missing.setdefault((self._topic_names[rows[13 * row + 12]].decode(), rows[13 * row + 6]), self.rows_done + row)
                row += 1
        return missing

    def _first_unknown(self, number: cython.Py_ssize_t, count: cython.Py_ssize_t):
        """The first row of a topic that is not known, or not any more, since its rows come slowly; -1 if there is none."""
        topics: cython.p_longlong = longs_at(address_of(self._topics), 4 * number + 4)
        queues: TopicQueues = self._accumulator.topics.get(self._topic_names[number].decode())
        if topics[4 * number + 1] > 0 and queues.count > 0:
            return -1
        return find_topic(longs_at(address_of(self._rows), 13 * 4096), count, number)

    def _number_topics(self, count: cython.Py_ssize_t):
        """Find the number of each row's topic. Raises ``ValueError`` if a row has none."""
        row: cython.Py_ssize_t = 0
        cell: cython.Py_ssize_t
        rows: cython.p_longlong = longs_at(address_of(self._rows), 13 * 4096)
        if self._topic is not None:
            for row in range(count):
                rows[13 * row + 12] = 0
            return
        while row < count:
            known: cython.Py_ssize_t = len(self._names)
            names: cython.p_longlong = longs_at(address_of(self._name_table), 2 * known)
            row = match_topics(rows, row, count, names, known)
            if row < count:
                cell = 13 * row
                if rows[cell + 5] <= 0:
                    raise ValueError(f"row {self.rows_done + row}: the topic is {'null' if rows[cell + 5] else 'empty'}")
                name = _bytes_at(rows[cell + 4], rows[cell + 5])
                try:
                    name.decode()
                except UnicodeDecodeError as error:
                    raise ValueError(f"row {self.rows_done + row}: the topic {name!r} is not UTF-8") from error
                self._add_topic(name)

    def _call_partitioner(self, count: cython.Py_ssize_t):
        """Set the partition of each row that has none."""
        row: cython.Py_ssize_t
        cell: cython.Py_ssize_t
        queues: TopicQueues
        rows: cython.p_longlong = longs_at(address_of(self._rows), 13 * 4096)
        for row in range(count):
            cell = 13 * row
            if rows[cell + 6] < 0:
                queues = self._accumulator.topics[self._topic_names[rows[cell + 12]].decode()]
                key = _bytes_at(rows[cell], rows[cell + 1]) if rows[cell + 1] >= 0 else None
                rows[cell + 6] = self._accumulator._custom_partition(queues, key)

    # -- batches --------------------------------------------------------------------------------------------------------------

    def _measure(self, count: cython.Py_ssize_t):
        """Measure the records, and what each slot gets of the window. Raises ``MessageTooLargeError``."""
        row: cython.Py_ssize_t
        most: cython.Py_ssize_t = self._accumulator._max_record
        rows: cython.p_longlong = longs_at(address_of(self._rows), 13 * 4096)
        slots: cython.p_longlong = longs_at(address_of(self._slots), 7 * len(self._queues))
        topics: cython.p_longlong = longs_at(address_of(self._topics), 4 * len(self._names))
        for row in range(len(self._queues)):
            slots[7 * row + 6] = 0
        for row in range(len(self._names)):
            topics[4 * row + 3] = 0
        row = measure_rows(rows, count, slots, topics, most)
        if row >= 0:
            size = 97 + rows[13 * row + 10] + max(0, rows[13 * row + 1]) + max(0, rows[13 * row + 3])
            raise MessageTooLargeError(
                f"row {self.rows_done + row}: a record of {size} bytes, with the header of its batch: {most} are allowed",
                hint="see max.request.size and buffer.memory, and max.message.bytes of the topic",
            )
        self._sharers = count_sharers(slots, len(self._queues), topics, len(self._names))

    def _encode(self, row: cython.Py_ssize_t, count: cython.Py_ssize_t):
        """Encode rows from ``row`` on; return the first one for which its batch has no room."""
        rows: cython.p_longlong = longs_at(address_of(self._rows), 13 * 4096)
        headers: cython.p_longlong = longs_at(address_of(self._headers), len(self._headers) // 8)
        slots: cython.p_longlong = longs_at(address_of(self._slots), 7 * len(self._queues))
        topics: cython.p_longlong = longs_at(address_of(self._topics), 4 * len(self._names))
        with cython.nogil:
            row = encode_rows(rows, row, count, headers, slots, topics)
        return row  # noqa: RET504 - no Python object is made without the GIL

    def _make_room(self, row: cython.Py_ssize_t, count: cython.Py_ssize_t, left: cython.Py_ssize_t):
        """Grow, close or open the batch of a row, in a window of ``count`` rows out of ``left``.

        Returns 0, or the bytes of memory that it waits for."""
        slot: cython.Py_ssize_t
        size: cython.Py_ssize_t
        batch: ProducerBatch
        rows: cython.p_longlong = longs_at(address_of(self._rows), 13 * 4096)
        slots: cython.p_longlong = longs_at(address_of(self._slots), 7 * len(self._queues))
        topics: cython.p_longlong = longs_at(address_of(self._topics), 4 * len(self._names))
        topic: cython.Py_ssize_t = rows[13 * row + 12]
        most: cython.longlong = self._accumulator._max_record
        need: cython.longlong = rows[13 * row + 11] + 20  # the most for its length and its two deltas
        slot = rows[13 * row + 6] if rows[13 * row + 6] >= 0 else topics[4 * topic + 2]
        batch = self._batches[slot]
        if batch is not None and slots[7 * slot + 1] + need > most:
            self._finish(slot)
            if slot == topics[4 * topic + 2]:
                self._choose_sticky(topic)
            return 0
        size = slots[7 * slot + 6] + (topics[4 * topic + 3] if slot == topics[4 * topic + 2] else 0)
        size = min(size, most) * (left - row) // count  # the rest of the array probably needs it
        size = max(need, min(size, self._available // (2 * self._sharers)))  # but the others need memory, too
        if batch is not None:
            size = min(most, slots[7 * slot + 1] + max(size, batch.room // 4))
            if not self._accumulator.reserve(size - batch.room):
                return self._without_memory(size - batch.room)
            self._save(slot)
            try:
                batch._allocate(size)
            except BaseException:  # MemoryError; with what it has, the batch is released later
                self._accumulator.unreserve(size - batch.room)
                raise
        else:
            size = min(most, 61 + size)
            if not self._accumulator.reserve(size):
                return self._without_memory(size)
            try:
                batch = ProducerBatch(self._queues[slot], size, rows[13 * row + 7], self._accumulator._mono())
            except BaseException:
                self._accumulator.unreserve(size)
                raise
            batch.queue.topic.used_at = batch.created_at
            self._batches[slot] = batch
            slots[7 * slot + 1] = 61
            slots[7 * slot + 3] = 0
            slots[7 * slot + 4] = slots[7 * slot + 5] = rows[13 * row + 7]
        slots[7 * slot] = address_of(batch.memory)
        slots[7 * slot + 2] = size
        return 0

    def _without_memory(self, size: cython.Py_ssize_t):
        """Return what ``_make_room`` returns. Before a wait in vain, the batches that are being filled are sent, and only then.

        1. An acknowledged batch gives memory to one partition. 2. The next row belongs to another one, which has none. 3. If all
        were sent then, each would have a row.
        """
        rooms: cython.longlong = self._held()
        before: cython.longlong = self._available
        self._available = self._accumulator._memory - self._accumulator.used + rooms + self.delivery.memory_size()
        if self._available < before:
            return 0  # once more, with a guess that fits
        if self.delivery.waits_in_vain(rooms):
            self.finish_all()
        return size

    def _held(self):
        """The bytes of memory of the batches that are being filled."""
        return sum_rooms(longs_at(address_of(self._slots), 7 * len(self._queues)), len(self._queues))

    def _save(self, slot: cython.Py_ssize_t):
        """Let a batch know what was encoded into it."""
        slots: cython.p_longlong = longs_at(address_of(self._slots), 7 * len(self._queues))
        batch: ProducerBatch = self._batches[slot]
        batch.size = slots[7 * slot + 1]
        batch.count = slots[7 * slot + 3]
        batch.max_timestamp = slots[7 * slot + 5]

    def _finish(self, slot: cython.Py_ssize_t):
        """Have a batch sent. Raises ``ClosedError``."""
        slots: cython.p_longlong = longs_at(address_of(self._slots), 7 * len(self._queues))
        batch: ProducerBatch = self._batches[slot]
        self._save(slot)
        if not self._accumulator.enqueue(batch):
            raise ClosedError("the producer is closed")
        self._batches[slot] = None  # now, since the two calls below are of Python code, which raises what a signal handler does
        slots[7 * slot + 1] = slots[7 * slot + 2] = 0
        try:
            self.delivery.add(batch)
        finally:
            self._accumulator.wake()

    def finish_all(self):
        """Have all batches sent that are being filled."""
        slot: cython.Py_ssize_t
        for slot in range(len(self._batches)):
            if self._batches[slot] is not None:
                self._finish(slot)

    def _drop_all(self):
        """Give back the memory of batches that were not accepted, and never of others: that of an accepted one may be in use.

        Uncompiled, a call can be interrupted before it has noted that one was accepted.
        """
        batches, self._batches = self._batches, []
        self._accumulator.release_all([batch for batch in batches if batch is not None and batch.state is _OPEN])


@cython.cfunc
def _bytes_at(address: cython.longlong, size: cython.Py_ssize_t):
    """A copy of bytes in memory."""
    return bytes(bytes_at(address, size)[:size])
