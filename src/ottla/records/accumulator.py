"""The record accumulator of a producer: ``send`` encodes each record into the open batch of its partition. This is the hot path.

Owns the queues of batches, the memory that they take, and the choice of a partition. Must not know brokers, requests, retries or
threads. Invariants: the bytes of a batch are complete records at any time; a batch is encoded by the threads that append until it
is closed, and then belongs to the network thread; memory in use never exceeds the limit.

Any thread may append. All methods that change a queue hold a lock; the network thread closes a batch under it, and then needs it
no more for that batch. A thread that appends calls no Python code with the lock, not even the clock: a signal handler may run
inside it, and append a record. The source runs uncompiled or compiled by Cython, with the same result; the attributes of the
classes are declared in ``accumulator.pxd``. Sources: KIP-98 (the format), KIP-480 and KIP-794 (records without a key), Kafka's
``RecordAccumulator`` and ``BuiltInPartitioner``.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython
if cython.compiled:
    from cython.cimports.ottla.records.memory import copy, is_exported
    from cython.cimports.ottla.records.murmur2 import murmur2
    from cython.cimports.ottla.records.producer_queues import Delivery, PartitionQueue, ProducerBatch, TopicQueues
    from cython.cimports.ottla.records.varint import put_varint, varint_size
else:
    from ottla.records.memory import copy, is_exported
    from ottla.records.murmur2 import murmur2
    from ottla.records.producer_queues import Delivery, PartitionQueue, ProducerBatch, TopicQueues
    from ottla.records.varint import put_varint, varint_size

from bisect import bisect_right
from collections import deque

from ottla.errors import MessageTooLargeError, OttlaError
from ottla.records.batch_states import BatchInput
from ottla.records.record_arguments import (
    NO_HEADERS,
    bytes_of,
    check_callback,
    checked_partition,
    checked_timestamp,
    encode_headers,
)
from ottla.types import as_integer, short_repr

COMPILED = cython.compiled

# Literal numbers below, since a global of the module is a Python object in compiled code: 61 is the size of a batch's header.

_CLOSE = BatchInput.CLOSE
"""A constant, since access to a member of an ``Enum`` is a call of Python code in some versions."""


class RecordAccumulator:
    """The queues of all topics. Sizes are in bytes.

    ``nanoseconds`` returns the time since 1970, ``mono`` monotonic milliseconds. ``wake`` is called, outside the lock, when a batch
    was created. ``settled`` is called with each batch that has an outcome, before those who wait for it are woken, ``unseen`` with
    a failed batch that is dropped before anyone has looked at its error. ``partitioner`` is called with (topic, key, number of
    partitions), for records without a partition. ``waiters`` are called, once, when memory was freed; ``waits`` knows how to wait
    for a ``Delivery``.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        memory: int,
        max_record: int,
        lock,
        nanoseconds,
        mono,
        random,
        wake,
        settled,
        unseen,
        partitioner=None,
        ignores_keys: bool = False,
    ) -> None:
        self.topics = {}
        self._lock = lock
        self.incomplete = {}
        self.used = self.freed = 0
        self.waiters = []
        self.accepts = True
        self.settled = settled
        self.unseen = unseen
        self.waits = None
        self._batch_size = batch_size
        self._memory = memory
        self._max_record = max_record
        self._nanoseconds = nanoseconds
        self._mono = mono
        self._random = random
        self._wake = wake
        self._partitioner = partitioner
        self._ignores_keys = ignores_keys
        self._no_headers = NO_HEADERS
        self._active = {}
        self._spares = deque()

    # -- any thread -------------------------------------------------------------------------------------------------------

    def append(self, topic, value, key=None, partition=None, headers=(), timestamp=None, on_delivery=None):
        """Encode a record; return its ``Delivery``.

        ``None`` if it has to wait: the topic or the partition is not known, memory is short, or ``accepts`` is false. Raises
        ``TypeError`` and ``ValueError`` for what cannot be a record, and ``MessageTooLargeError``.
        """
        return self._append(topic, value, key, partition, headers, timestamp, on_delivery)

    def _append(self, topic, value, key, partition, headers, timestamp, on_delivery):
        delivery: Delivery
        stamp: cython.longlong
        created_at: cython.longlong = -1
        number: cython.Py_ssize_t = -1
        before: ProducerBatch
        queue: PartitionQueue
        # A list, for example, cannot be looked up. The call that waits for the topic raises for anything but text.
        queues: TopicQueues = self.topics.get(topic) if isinstance(topic, str) else None
        if queues is None or queues.count == 0 or not self.accepts:
            return None
        known_key: bytes = key if key is None or type(key) is bytes else bytes_of(key, "a key")
        known_value: bytes = value if value is None or type(value) is bytes else bytes_of(value, "a value")
        encoded: bytes = encode_headers(headers) if headers else self._no_headers
        if timestamp is None:
            stamp = self._nanoseconds()
            stamp = stamp // 1000000
        else:
            stamp = checked_timestamp(timestamp)
        if partition is not None:
            number = checked_partition(partition)
            if number >= queues.count:
                return None
        elif self._partitioner is not None:
            number = self._custom_partition(queues, known_key)
        elif known_key is not None and not self._ignores_keys and queues.count > 0:
            number = (murmur2(known_key) & 0x7FFFFFFF) % queues.count
        if on_delivery is not None:
            check_callback(on_delivery)
        most: cython.Py_ssize_t = self._most_bytes(known_key, known_value, encoded)
        if cython.compiled and on_delivery is None:
            delivery = self._put_now(queues, number, most, known_key, known_value, encoded, stamp)
            if delivery is not None:
                return delivery
        while True:
            with self._lock:
                # Either may have changed since: the transaction is being ended, or the topic was forgotten.
                if not self.accepts or queues.count == 0:
                    return None
                queue = self._choose(queues, most) if number < 0 else queues.queues[number]
                before = queue.open
                delivery = self._put(queue, known_key, known_value, encoded, stamp, created_at)
                if delivery is not None and on_delivery is not None:
                    delivery.batch.callbacks.append((on_delivery, delivery))
            if delivery is not None or created_at >= 0:
                break
            created_at = self._mono()  # Python code, in which a signal handler may run that sends a record: not with the lock
        if delivery is not None and delivery.batch is not before:
            self.wake()
        return delivery

    def wake(self):
        """Have the network thread look at the batches. Any thread may call this, without the lock.

        A signal handler may raise before that was done. Then it is done all the same: no later record of the batch would do it.
        """
        try:
            self._wake()
        except OttlaError:
            raise
        except BaseException:
            self._wake()
            raise

    def _put_now(self, queues, number, most, key, value, headers, stamp):
        """Encode a record without the lock, which would take as long as the rest; ``None`` if that needs more than its bytes.

        Compiled code is not interrupted where it neither calls Python code nor allocates what the garbage collector tracks. The
        sections with the lock leave an open batch complete whenever they do either. (A free-threaded Python turns the GIL on when
        it imports this module.)
        """
        body: cython.Py_ssize_t
        size: cython.Py_ssize_t
        queue: PartitionQueue = self._sticky(queues, most) if number < 0 else queues.queues[number]
        if not self.accepts or queue is None or queue.open is None:
            return None
        batch: ProducerBatch = queue.open
        body = _fixed_size(key, value, headers) + varint_size(stamp - batch.base_timestamp) + varint_size(batch.count)
        size = body + varint_size(body)
        if batch.size + size > batch.room:
            return None
        return _write(queue, batch, body, key, value, headers, stamp)

    def _most_bytes(self, key, value, headers):
        """The most bytes that the encoded record can have. Raises ``MessageTooLargeError`` if those are too many for a batch."""
        size: cython.Py_ssize_t = len(headers) + 36
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if 61 + size > self._max_record:
            text = f"a record of up to {61 + size} bytes with the header of its batch, and {self._max_record} are allowed"
            raise MessageTooLargeError(text, hint="see max.request.size and buffer.memory, and max.message.bytes of the topic")
        return size

    def _custom_partition(self, queues: TopicQueues, key):
        given = self._partitioner(queues.name, key, queues.count)
        number = as_integer(given)
        if number is None or not 0 <= number < queues.count:
            raise ValueError(f"the partitioner returned {short_repr(given)} for {queues.name}, which has {queues.count} partitions")
        return number

    def _choose(self, queues, most):
        """The queue for a record without a key, of at most ``most`` bytes: one partition gets a whole batch, then another one."""
        queue: PartitionQueue = self._sticky(queues, most)
        return self._next_sticky(queues) if queue is None else queue

    def _sticky(self, queues, most):
        """The queue that gets the records without a key at present; ``None`` if it has had a whole batch."""
        queue: PartitionQueue
        batch: ProducerBatch
        if 0 <= queues.sticky < queues.count:
            queue = queues.queues[queues.sticky]
            batch = queue.open
            if queues.sticky_bytes < self._batch_size or (batch is not None and batch.size + most <= self._batch_size):
                return queue
        return None

    def _next_sticky(self, queues: TopicQueues):
        """Choose at random, by the weights of the partitions if they have any: those with short queues get more."""
        if queues.weights is not None:
            candidates, cumulative = queues.weights
            queues.sticky = candidates[bisect_right(cumulative, int(self._random.random() * cumulative[-1]))]
        else:
            available = queues.available or range(queues.count)
            queues.sticky = available[int(self._random.random() * len(available))]
        queues.sticky_bytes = 0
        return queues.queues[queues.sticky]

    def _put(self, queue, key, value, headers, stamp, created_at):
        """Encode a record; ``None`` if that needs a new batch, and there is no memory for it, or ``created_at`` is negative."""
        body: cython.Py_ssize_t
        size: cython.Py_ssize_t
        batch: ProducerBatch = queue.open
        fixed: cython.Py_ssize_t = _fixed_size(key, value, headers)
        while True:
            if batch is not None:
                body = fixed + varint_size(stamp - batch.base_timestamp) + varint_size(batch.count)
                size = body + varint_size(body)
                if batch.size + size <= batch.room or self._grow(batch, size):
                    break
                self._close(queue)
            batch = self._open(queue, 61 + fixed + 1 + 1 + 5, stamp, created_at)
            if batch is None:
                return None
        return _write(queue, batch, body, key, value, headers, stamp)

    def _open(self, queue, need, stamp, created_at):
        """Create the open batch of a partition, for a record of ``need`` bytes; ``None`` if there is no memory for it.

        ``created_at`` is negative if the clock was not read yet: there is none then, either.
        """
        room: cython.Py_ssize_t = queue.usual
        if room > self._batch_size:
            room = self._batch_size
        if room < need:
            room = need
        if created_at < 0:
            return None
        if self.used + room > self._memory:
            room = need
            if self.used + room > self._memory:
                return None
        batch: ProducerBatch = ProducerBatch(queue, room, stamp, created_at)
        topic: TopicQueues = queue.topic
        topic.used_at = batch.created_at
        self.used += room
        self.incomplete[batch] = None
        self._active[queue] = None
        queue.open = batch
        return batch

    def _grow(self, batch, size):
        """Make room for a record of ``size`` bytes, if the batch may have it; return whether it has it now."""
        need: cython.Py_ssize_t = batch.size + size
        former: cython.Py_ssize_t = batch.room
        room: cython.Py_ssize_t = 2 * former
        if need > self._batch_size:
            return False
        if room > self._batch_size:
            room = self._batch_size
        if room < need:
            room = need
        if self.used + room - former > self._memory:
            return False
        batch._allocate(room)
        self.used += room - former  # only now: the line before may raise MemoryError
        return True

    def _close(self, queue):
        batch: ProducerBatch = queue.open
        if batch is not None:
            batch.move(_CLOSE)  # before the batch is taken: this may raise KeyboardInterrupt
            queue.open = None
            queue.usual = batch.room if batch.room < self._batch_size else self._batch_size
            queue.closed.append(batch)

    def take_spare(self, size: cython.Py_ssize_t):
        """A buffer of this size that a batch had before, to which nothing refers any more; ``None`` if there is none.

        The pages of a new buffer cost as much time as encoding the records in it.
        """
        spare: bytearray
        if size >= 65536 and self._spares:
            spare = self._spares.popleft()  # the oldest: a request may still have the latest ones
            if len(spare) == size and not is_exported(spare):
                return spare
        return None

    def keep_spare(self, buffer: bytearray) -> None:
        """Take back the buffer of a batch. Spare ones take up to 4 MiB, in addition to ``memory``."""
        if len(buffer) >= 65536 and (len(self._spares) + 1) * len(buffer) <= 4194304:
            self._spares.append(buffer)

    # -- the calling thread of ``send_arrow`` -----------------------------------------------------------------------------------

    def reserve(self, size: cython.Py_ssize_t):
        """Take so many bytes of memory, if they are free; return whether they were."""
        with self._lock:
            if not self.has_room(size):
                return False
            self.used += size
            return True

    def unreserve(self, size: cython.Py_ssize_t):
        """Give back bytes that ``reserve`` took."""
        with self._lock:
            self.used -= size
            self.freed += 1
        self._call_waiters()

    def has_room(self, size: cython.Py_ssize_t):
        """Whether so many bytes of memory are free."""
        return self.used + size <= self._memory

    def enqueue(self, batch: ProducerBatch):
        """Close a batch whose memory is reserved, and put it behind those of its partition; return whether it was accepted.

        Then it belongs to the network thread, which the caller has to wake.
        """
        queue: PartitionQueue = batch.queue
        topic: TopicQueues = queue.topic
        created_at: cython.longlong = self._mono()  # before the lock, as in ``append``
        with self._lock:
            if not self.accepts:
                return False
            self._close(queue)
            batch.move(_CLOSE)
            batch.created_at = topic.used_at = created_at
            queue.closed.append(batch)
            self.incomplete[batch] = None
            self._active[queue] = None
            if queue.partition == topic.sticky:
                topic.sticky_bytes += batch.size
        return True

    def sticky_partition(self, queues: TopicQueues):
        """The partition for records without a key: the next one when this one has got a batch; -1 if the topic was forgotten."""
        with self._lock:
            if queues.count == 0:
                return -1
            if not 0 <= queues.sticky < queues.count or queues.sticky_bytes >= self._batch_size:
                self._next_sticky(queues)
            return queues.sticky

    # -- the network thread -----------------------------------------------------------------------------------------------

    def set_partitions(self, topic, count, available=None) -> None:
        """Let a topic have so many partitions, of which those in ``available`` have a leader; ``None``: all of them.

        Batches of partitions that no longer exist remain.
        """
        queues: TopicQueues
        with self._lock:
            queues = self.topics.get(topic)
            if queues is None:
                queues = TopicQueues(self, topic)
            while len(queues.queues) < count:
                queues.queues.append(PartitionQueue(queues, len(queues.queues)))
            if count != queues.count:
                queues.weights = None  # they may choose partitions that no longer exist
            queues.count = count
            queues.available = available
            if queues.sticky >= count:
                queues.sticky = -1
            self.topics[topic] = queues

    def active(self):
        """The partitions that have batches."""
        with self._lock:
            return list(self._active)

    def close(self, queue: PartitionQueue) -> None:
        """Close the open batch of a partition, if it has one."""
        with self._lock:
            self._close(queue)

    def close_all(self):
        """Close all open batches; return those without an outcome, the oldest first."""
        queue: PartitionQueue
        with self._lock:
            for queue in self._active:
                self._close(queue)
            return list(self.incomplete)

    def set_idle(self, queue: PartitionQueue) -> None:
        """Leave a partition out of ``active`` if it has no batches."""
        with self._lock:
            if queue.open is None and not queue.closed:
                self._active.pop(queue, None)

    def put_back(self, queue: PartitionQueue, place, batches) -> None:
        """Insert batches into the queue of a partition, in this order, before the one at ``place``."""
        with self._lock:
            for batch in reversed(batches):
                queue.closed.insert(place, batch)
            self._active[queue] = None

    def replace(self, batch: ProducerBatch, parts) -> None:
        """Take over the parts of a batch, and free its own memory."""
        part: ProducerBatch
        with self._lock:
            for part in parts:
                self.used += part.room
                self.incomplete[part] = None
            self.incomplete.pop(batch, None)
            self.used -= batch.room
            batch.free()

    def release(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch that has an outcome."""
        self.release_all((batch,))

    def release_all(self, batches) -> None:
        """Free the memory of batches that the network thread never had, or does not have any more."""
        batch: ProducerBatch
        with self._lock:
            for batch in batches:
                self.incomplete.pop(batch, None)
                self.used -= batch.room
                self.freed += 1
                batch.free()
        self._call_waiters()

    def _call_waiters(self):
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter()


@cython.cfunc
@cython.inline
def _fixed_size(key: bytes | None, value: bytes | None, headers: bytes) -> cython.Py_ssize_t:
    """The bytes of a record's body that do not depend on its batch."""
    size: cython.Py_ssize_t = len(headers) + 3  # the attributes, and two lengths of one byte
    if key is not None:
        size += len(key) + varint_size(len(key)) - 1
    if value is not None:
        size += len(value) + varint_size(len(value)) - 1
    return size


@cython.cfunc
def _write(
    queue: PartitionQueue,
    batch: ProducerBatch,
    body: cython.Py_ssize_t,
    key: bytes | None,
    value: bytes | None,
    headers: bytes,
    stamp: cython.longlong,
) -> Delivery:
    """Encode a record of ``body`` bytes, without their number in front, into a batch that has room for it."""
    source: cython.p_const_uchar
    topic: TopicQueues = queue.topic
    data: cython.p_uchar = batch.data
    at: cython.Py_ssize_t = put_varint(data, batch.size, body)
    data[at] = 0  # attributes; none are defined
    at = put_varint(data, at + 1, stamp - batch.base_timestamp)
    at = put_varint(data, at, batch.count)
    if key is None:
        at = put_varint(data, at, -1)
    else:
        at = put_varint(data, at, len(key))
        source = key
        copy(data, at, source, 0, len(key))
        at += len(key)
    if value is None:
        at = put_varint(data, at, -1)
    else:
        at = put_varint(data, at, len(value))
        source = value
        copy(data, at, source, 0, len(value))
        at += len(value)
    source = headers
    copy(data, at, source, 0, len(headers))
    at += len(headers)
    delivery: Delivery = Delivery.__new__(Delivery)  # a call of the class would make Python objects of the numbers
    delivery.batch = batch
    delivery.index = batch.count
    delivery._timestamp = stamp
    if stamp > batch.max_timestamp:
        batch.max_timestamp = stamp
    if queue.partition == topic.sticky:
        topic.sticky_bytes += at - batch.size
    batch.size = at
    batch.count += 1
    return delivery


class RecordSender:
    """The part of a ``Producer`` that is called for each record, and the base of that class.

    Compiled, since a call of a Python function with these arguments takes as long as everything that ``append`` does.
    """

    def send(self, topic, value=None, key=None, *, partition=None, headers=(), timestamp=None, on_delivery=None):
        """Add a record to a batch; return its future outcome.

        Key and value are bytes, text (in UTF-8) or ``None``, unless there are serializers. ``partition``: by default that of the
        key, as with Kafka's own producer; without a key, one that gets a whole batch. ``headers`` are pairs of a name and bytes,
        text or ``None``. ``timestamp`` is in milliseconds since 1970; by default, now. ``on_delivery`` is called with the
        ``Delivery``, by a thread that is inside a call of this producer.

        Waits, at most ``max_block``, if the topic is not known yet, or if the records without an outcome take ``buffer_memory``.
        """
        if self._delivered:
            self._calls.run_callbacks()
        if self._serialize:
            key, value = self._serialized(key, value)
        delivery = self._accumulator._append(topic, value, key, partition, headers, timestamp, on_delivery)
        if delivery is None:
            return self._send_later(topic, value, key, partition, headers, timestamp, on_delivery)
        return delivery
