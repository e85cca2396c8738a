"""The queues of a producer's batches, and the outcome of the records in them.

Owns a batch from its creation to its outcome, the queue of a partition, and the ``Delivery`` of a record. Must not know how records
are encoded, requests or threads. Invariants: a batch is encoded by the threads that append until it is closed, and then belongs to
the network thread; its outcome is set once, before anyone who waits for it is woken.

The source runs uncompiled or compiled by Cython, with the same result; the attributes of the classes are declared in
``producer_queues.pxd``.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.ottla.records.batch import new_buffer
else:
    from ottla.records.batch import new_buffer

from collections import deque

from ottla.records.batch_states import OUTCOMES, TRANSITIONS, BatchInput, BatchState
from ottla.types import TopicPartition

COMPILED = cython.compiled

# Literal numbers below, since a global of the module is a Python object in compiled code: 61 is the size of a batch's header.

FIRST_ROOM = 1024
"""Bytes for the first batch of a partition; a later one has as many as the one before it needed."""


class TopicQueues:
    """The partitions of one topic."""

    def __init__(self, accumulator, name) -> None:
        self.name = name
        self.accumulator = accumulator
        self.queues = []
        self.count = 0
        self.used_at = 0
        self.available = None
        self.weights = None
        self.sticky = -1
        self.sticky_bytes = 0

    @property
    def is_sticky(self):
        """Whether there were records without a key."""
        return self.sticky >= 0

    @property
    def partition_count(self):
        """The number of partitions; 0 if it is not known any more."""
        return self.count


class PartitionQueue:
    """The batches of one partition that are not in flight: closed ones, the oldest first, and the open one."""

    def __init__(self, topic: TopicQueues, partition) -> None:
        self.topic = topic
        self.partition = partition
        self.tp = TopicPartition(topic.name, partition)
        self.closed = deque()
        self.open = None
        self.usual = FIRST_ROOM

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.tp}, {len(self.closed)} closed>"


class ProducerBatch:
    """The records of one partition that are written together, and their outcome. ``size`` is in bytes, before compression."""

    def __init__(self, queue: PartitionQueue, room: cython.Py_ssize_t, timestamp, created_at) -> None:
        self.queue = queue
        self.state = BatchState.OPEN
        self.created_at = created_at
        self.base_timestamp = self.max_timestamp = timestamp
        self.size = 61
        self.count = 0
        self.parts = None
        self.base_offset = self.log_append_time = self.error = None
        self.callbacks = []
        self.waiters = []
        self.seen = False
        self.sequence = self.producer = self.retry_at = self.last_error = None
        self.attempts = 0
        self.is_transactional = False
        self._allocate(room)

    def __repr__(self) -> str:
        queue: PartitionQueue = self.queue
        return f"<ProducerBatch {queue.tp}, {self.count} records, {self.state.name}>"

    @property
    def memory_size(self):
        """The bytes of memory that the batch takes."""
        return self.room

    def move(self, what) -> None:
        """Take the transition for ``what``, a ``BatchInput``."""
        self.state = TRANSITIONS[self.state][what]

    def settle(self, what, base_offset=None, log_append_time=None, error=None) -> None:
        """Set the outcome, report it to ``settled``, and wake all who wait for it."""
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.error = error
        self.move(what)
        queue: PartitionQueue = self.queue
        queue.topic.accumulator.settled(self)
        self._wake()

    def divide(self, parts) -> None:
        """Let these batches, in order, have the outcome of this one's records. Those who wait look at them then."""
        self.parts = parts
        self.move(BatchInput.SPLIT)
        self._wake()

    def payload(self):
        """The encoded records, without a header. They do not change once the batch is closed."""
        return memoryview(self.memory)[61 : self.size]

    def content(self):
        """The memory with the records, in which the first 61 bytes are left for the header."""
        return memoryview(self.memory)[: self.size]

    def free(self) -> None:
        """Give up the memory."""
        queue: PartitionQueue = self.queue
        queue.topic.accumulator.keep_spare(self.memory)
        self.memory = None
        self.data = cython.NULL if cython.compiled else None
        self.room = 0

    def take_callbacks(self):
        """Remove and return the callbacks, each with its delivery."""
        callbacks, self.callbacks = self.callbacks, []
        return callbacks

    def __del__(self) -> None:
        if self.error is not None and not self.seen:
            queue: PartitionQueue = self.queue
            queue.topic.accumulator.unseen(self)

    def part_of(self, index):
        """The batch that has the record, and the number of the record in it: another one after a split."""
        batch: ProducerBatch = self
        while batch.parts is not None:
            for part in batch.parts:
                if index < part.count:
                    batch = part
                    break
                index -= part.count
        return batch, index

    def _wake(self):
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()

    def _allocate(self, room):
        """Use a buffer of ``room`` bytes from now on, with what was written so far."""
        former = self.memory if self.count else None
        queue: PartitionQueue = self.queue
        memory: bytearray = queue.topic.accumulator.take_spare(room) or new_buffer(room)
        if cython.compiled:
            raw: cython.p_char = memory
            if former is not None:
                memcpy(raw, self.data, self.size)
            self.data = cython.cast(cython.p_uchar, raw)
        else:
            if former is not None:
                memory[: self.size] = former[: self.size]
            self.data = memoryview(memory)
        self.memory = memory
        self.room = room


# Not tracked by the garbage collector: the only cycle, through the callbacks of its batch, ends with the outcome.
@cython.no_gc
@cython.freelist(256)
@cython.cclass
class Delivery:
    """The future outcome of one record that was sent."""

    def __repr__(self) -> str:
        return f"<Delivery of record {self.index} of {self.batch!r}>"

    @property
    def timestamp(self):
        """The record's timestamp as it was sent."""
        return self._timestamp

    def done(self):
        """Whether there is an outcome."""
        return self.batch.part_of(self.index)[0].state in OUTCOMES

    def error(self):
        """The error because of which the record was not written; ``None``: it was written, or has no outcome yet."""
        batch: ProducerBatch = self.batch.part_of(self.index)[0]
        if batch.error is not None:
            batch.seen = True
        return batch.error

    def result(self, timeout=None):
        """Wait until the record has an outcome; return a ``RecordMetadata``, or raise the error.

        ``timeout`` is in seconds; ``None``: as long as it takes. Raises ``OttlaTimeoutError`` after it; the record may still be
        written then.
        """
        return self.batch.queue.topic.accumulator.waits.result(self, timeout)

    def __await__(self):
        return self.batch.queue.topic.accumulator.waits.wait(self)


def closed_batch(queue: PartitionQueue, records, count, timestamps, created_at) -> ProducerBatch:
    """A closed batch of ``count`` encoded records. ``timestamps``: that of the first one, and the highest."""
    size: cython.Py_ssize_t = 61 + len(records)
    batch: ProducerBatch = ProducerBatch(queue, size, timestamps[0], created_at)
    memoryview(batch.memory)[61:] = records
    batch.size = size
    batch.count = count
    batch.max_timestamp = timestamps[1]
    batch.move(BatchInput.CLOSE)
    return batch
