"""The queues of ``Consumer.streams()``: which records wait in which stream, and how far each stream has come.

Owns the chunks, their queues, the mapping from partition to stream, and the decisions about full queues. Must not know threads, nor
how records are fetched or commits are made. Invariants: the chunks of a partition are in one queue, in order, and its records are
handed out by one stream at a time; a queue never has more than ``queued_max_message_chunks`` waiting chunks; a position covers no
record that its stream has not finished.

Two threads share a ``StreamQueue`` without a lock. The pump, which is the application thread of ``client.calls``, writes ``chunks``
(a tuple, replaced as a whole); the thread that iterates writes the progress: ``walk``, ``done`` and ``finished``. Both claim a
chunk with one ``dict.setdefault``, which CPython executes in one step. A signal handler may interrupt the iterating thread between
any two steps, and the next call of ``advance`` repeats the step.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.client.calls.delivery import DeliveryPart, PolledBy
from ottla.client.poll_timer import InHand
from ottla.client.subscription import Snapshot
from ottla.errors import OttlaError
from ottla.records import Record, Walk
from ottla.types import Now, OffsetAndMetadata, TopicPartition

FULL_TIME = 1_000
"""Milliseconds for which a queue may be full before its partitions are paused: fetched records are dropped then, and fetched again
later. They are paused at once if their records keep those of other streams from being fetched."""

RESPONSES = 2
"""Fetched responses that wait for full queues when their partitions are paused at once: no more are fetched from one broker."""

NO_CHUNK = -1

Positions = dict[TopicPartition, tuple[int, OffsetAndMetadata]]
"""Epoch and position by partition."""


class Chunk:
    """The records of one partition from one poll, for one stream. ``serial`` grows from chunk to chunk of a consumer."""

    __slots__ = ("_claimed", "part", "serial", "stopped", "void", "withdrawn")

    def __init__(self, serial: int, part: DeliveryPart) -> None:
        self.serial = serial
        self.part = part
        self.withdrawn = False
        """The stream may finish its current record, and hands out no other record of this chunk. Set by the pump."""
        self.void = False
        """The partition is lost, or continues elsewhere: the progress does not count any more. Set by the pump."""
        self.stopped: OffsetAndMetadata | None = None
        """Where the stream has stopped since the chunk was withdrawn. Set by the iterating thread, before ``StreamQueue.done``."""
        self._claimed: dict[str, bool] = {}

    def claim(self, *, to_iterate: bool) -> bool:
        """Whether the chunk belongs to the caller, the iterating thread or the pump: to whichever asks first."""
        return self._claimed.setdefault("to iterate", to_iterate) is to_iterate

    @property
    def waits(self) -> bool:
        """Whether the stream has not begun it."""
        return not self._claimed

    def after(self, record: Record) -> OffsetAndMetadata:
        """The position after one of the records."""
        if record.offset == self.part.records.last_offset:
            return self.part.end
        return OffsetAndMetadata(record.offset + 1, leader_epoch=record.leader_epoch)


class StreamQueue:
    """The queue of one stream, and the progress of the thread that iterates over it; see the module.

    ``go_on`` prepares the next record of ``walk``, in the thread that iterates; ``ring`` wakes that thread.
    """

    def __init__(self, name: str, go_on: Callable[[Walk], bool], ring: Callable[[], object]) -> None:
        self.name = name
        self.ring = ring

        # -- written by the pump ----------------------------------------------------------------------------------------

        self.chunks: tuple[Chunk, ...] = ()
        self.errors: deque[tuple[OttlaError, bool]] = deque(maxlen=1)
        """The error that the stream raises when no chunk waits, and whether it passes with the next chunk.

        The iterating thread removes it.
        """
        self.ended = False
        """No record follows."""
        self.busy: tuple[Record, int] | None = None
        """The record in hand, and the time (monotonic ms) at which the pump first saw it."""
        self.full_since: int | None = None

        # -- written by the thread that iterates ------------------------------------------------------------------------

        self.walk = Walk(go_on)
        """``at`` is the serial of the chunk that is iterated."""
        self.done = NO_CHUNK
        """The serial of the last chunk that is finished, or whose rest was withdrawn."""
        self.finished: Record | None = None
        """The latest record, if the next one was requested and not handed out yet."""
        self.thread: object = None
        """The thread that iterates: an object, since the number of a thread may be used again after its end."""
        self.caller: PolledBy | None = None
        """The code that has received the records of the current chunk."""
        self._chunk: Chunk | None = None

    def __repr__(self) -> str:
        return f"<StreamQueue {self.name}, {len(self.chunks)} chunks>"

    # -- the thread that iterates -----------------------------------------------------------------------------------------

    def advance(self, *, may_begin: bool = True) -> bool:
        """Count the current record as done, and prepare the next one. False: there is none now.

        ``may_begin``: whether it may be one of another chunk.
        """
        walk, chunk = self.walk, self._chunk
        self.finished = walk.current
        if chunk is not None and walk.at == chunk.serial:
            if walk.has_more and not chunk.withdrawn:
                return True
            if chunk.withdrawn:
                chunk.stopped = chunk.part.start if walk.current is None else chunk.after(walk.current)
            # If a signal handler has raised in the middle of ``take``, there is neither a current record nor a next one.
            if chunk.stopped is not None or walk.current is not None:
                self.done = chunk.serial
            walk.take((), NO_CHUNK)
        for chunk in self.chunks if may_begin else ():
            if chunk.serial > self.done and chunk.claim(to_iterate=True):
                self._chunk = chunk
                # ``current`` is None already, so no other thread takes an older record for one of this chunk.
                walk.take(chunk.part.records.segments, chunk.serial)
                return True
        return False

    # -- any thread -------------------------------------------------------------------------------------------------------

    def progress(self) -> tuple[int, Record | None]:
        """The serial of the chunk that is iterated, or ``NO_CHUNK``, and its latest record."""
        while True:
            at = self.walk.at
            current = self.walk.current
            if self.walk.at == at:
                return (at, current) if at != NO_CHUNK else (at, None)

    @property
    def in_hand(self) -> Record | None:
        """The record that was handed out and is not done."""
        _, current = self.progress()
        return None if current is self.finished else current

    def is_in_hand(self, chunk: Chunk) -> bool:
        """Whether a record of this chunk is handed out and not done."""
        at, current = self.progress()
        return at == chunk.serial and current is not None and current is not self.finished

    # -- the pump ---------------------------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """How many chunks the stream has not begun."""
        return sum(chunk.waits for chunk in self.chunks)

    def put(self, chunk: Chunk) -> None:
        """Add a chunk; the caller rings."""
        self.chunks += (chunk,)

    def prune(self) -> None:
        """Forget the finished chunks."""
        done = self.done
        if self.chunks and self.chunks[0].serial <= done:
            self.chunks = tuple([chunk for chunk in self.chunks if chunk.serial > done])

    def position(self, chunk: Chunk, *, with_current: bool) -> OffsetAndMetadata | None:
        """The position of the first record of a chunk that is not done; ``None``: the stream is done with the chunk."""
        at, current = self.progress()
        if at != chunk.serial:
            # ``done`` was set before ``at``, so it is read after it.
            return None if chunk.serial <= self.done else chunk.part.start
        if current is None:
            return chunk.part.start
        if with_current or current is self.finished:
            return chunk.after(current)
        return OffsetAndMetadata(current.offset, leader_epoch=current.leader_epoch)

    def withdraw(self, chunk: Chunk, *, void: bool) -> OffsetAndMetadata | None:
        """Have the stream hand out no more records of a chunk; return the position of the first one that it has not handed out.

        ``None``: it has handed out all of them. ``void``: the progress of the current record does not count any more either.
        """
        chunk.void = chunk.void or void
        if chunk.claim(to_iterate=False):
            self.chunks = tuple([other for other in self.chunks if other is not chunk])
            return chunk.part.start
        # In this order: the iterating thread is interrupted, and then looks at ``withdrawn``. It may stop at once.
        was_withdrawn, chunk.withdrawn = chunk.withdrawn, True
        self.walk.interrupt()
        position = self.position(chunk, with_current=True)
        return chunk.stopped if position is None and not was_withdrawn else position


class Changes(NamedTuple):
    """The partitions to be paused since their queue is full, and those to be resumed since there is room again."""

    pause: frozenset[TopicPartition] = frozenset()
    resume: frozenset[TopicPartition] = frozenset()


def divide(
    partitions: Iterable[TopicPartition], queues: Sequence[StreamQueue], threads: Mapping[TopicPartition, int]
) -> dict[TopicPartition, StreamQueue]:
    """Divide partitions among streams. ``threads``: the numbers of the streams that the group has chosen, if it chooses them.

    Otherwise as ``range`` of Kafka 0.8 does among threads: contiguous, and the first streams get one more.
    """
    ordered = sorted(partitions)
    size, larger = divmod(len(ordered), len(queues))
    rest = iter(ordered)
    divided = {tp: queue for place, queue in enumerate(queues) for tp in itertools.islice(rest, size + (place < larger))}
    return divided | {tp: queues[threads[tp]] for tp in ordered if threads.get(tp, len(queues)) < len(queues)}


class Streams:
    """All queues of a consumer; see the module. Everything here is called by the pump, except ``in_hand()``.

    ``by_topic``: the queues of each topic, or, for a subscription by pattern, the common queues of all topics.
    """

    def __init__(self, by_topic: Mapping[str, Sequence[StreamQueue]] | Sequence[StreamQueue], most_chunks: int) -> None:
        self._by_topic = by_topic
        self._most_chunks = most_chunks
        self._queue_of: dict[TopicPartition, StreamQueue] = {}
        self._threads: Mapping[TopicPartition, int] = {}
        self._active: dict[StreamQueue, None] = {}
        """The queues that have chunks."""
        self._serials = itertools.count()
        self._paused: set[TopicPartition] = set()
        """The partitions that were paused since their queue was full."""
        self.user_paused: set[TopicPartition] = set()
        """The partitions that the application has paused."""
        self.counted: frozenset[StreamQueue] = frozenset()
        """The queues whose record in hand counts as done, since the thread that has it closes the consumer."""

    def __repr__(self) -> str:
        return f"<Streams {len(self._queue_of)} partitions, {len(self._active)} queues with records>"

    @property
    def queues(self) -> list[StreamQueue]:
        """All queues."""
        if isinstance(self._by_topic, Mapping):
            return [queue for queues in self._by_topic.values() for queue in queues]
        return list(self._by_topic)

    # -- partitions -------------------------------------------------------------------------------------------------------

    def on_snapshot(self, snapshot: Snapshot) -> Positions:
        """Take a new snapshot: drop what it makes void, and move partitions whose stream changes.

        Returns for the moved ones the first position that was not handed out: their new stream continues there.
        """
        views = snapshot.partitions
        for queue, chunk in self._from_last_to_first():
            view = views.get(chunk.part.tp)
            if view is None or not view.follows(chunk.part.epoch):
                queue.withdraw(chunk, void=True)
        if self._queue_of.keys() == views.keys() and self._threads == snapshot.threads:
            return {}
        self._threads = snapshot.threads
        before, self._queue_of = self._queue_of, self._divide(views)
        return self.withdraw({tp for tp, queue in self._queue_of.items() if before.get(tp, queue) is not queue})

    def _divide(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StreamQueue]:
        """The stream of each partition."""
        if not isinstance(self._by_topic, Mapping):
            return divide(partitions, self._by_topic, self._threads)
        divided: dict[TopicPartition, StreamQueue] = {}
        for topic, queues in self._by_topic.items():
            divided |= divide([tp for tp in partitions if tp.topic == topic], queues, self._threads)
        return divided

    # -- chunks -----------------------------------------------------------------------------------------------------------

    def blocked(self) -> frozenset[TopicPartition]:
        """The partitions of which no chunk can be put now: the queue is full, or another stream has not finished a record."""
        self._prune()
        full = {queue for queue in self._active if queue.waiting() >= self._most_chunks}
        moving = {
            chunk.part.tp
            for queue, chunk in self._chunks()
            if chunk.withdrawn and self._queue_of.get(chunk.part.tp) is not queue and queue.is_in_hand(chunk)
        }
        if not full and not moving:
            return frozenset()
        return frozenset(tp for tp, queue in self._queue_of.items() if queue in full or tp in moving)

    def put(self, parts: Iterable[DeliveryPart]) -> list[DeliveryPart]:
        """Put each part into the queue of its stream; return those for which there is no room."""
        left: list[DeliveryPart] = []
        filled: dict[StreamQueue, None] = {}
        for part in parts:
            queue = self._queue_of.get(part.tp)
            if queue is None or queue.waiting() >= self._most_chunks or any(part.tp == other.tp for other in left):
                left.append(part)
                continue
            self._active[queue] = filled[queue] = None
            queue.put(Chunk(next(self._serials), part))
        for queue in filled:
            if any(passes for _, passes in tuple(queue.errors)):
                queue.errors.clear()
            queue.ring()
        return left

    def withdraw(self, partitions: Collection[TopicPartition], *, void: bool = False) -> Positions:
        """Have the streams hand out no more records of these partitions; return where each one that had some is to continue.

        ``void``: they are lost, so their records in hand do not count any more.
        """
        continue_at: Positions = {}
        for queue, chunk in self._from_last_to_first():
            tp = chunk.part.tp
            if tp in partitions and not chunk.void:
                position = queue.withdraw(chunk, void=void)
                if position is not None:
                    continue_at[tp] = chunk.part.epoch, position
        return continue_at

    def end(self) -> None:
        """End all streams. Their chunks were withdrawn."""
        for queue in self.queues:
            queue.ended = True
            queue.ring()

    def fail(self, error: OttlaError, partitions: Collection[TopicPartition] = (), *, passes: bool = True) -> None:
        """Have the streams of these partitions, or all, raise an error when no chunk waits.

        ``passes``: not if records arrive before.
        """
        for queue in {self._queue_of[tp] for tp in partitions if tp in self._queue_of} or self.queues:
            queue.errors.append((error.afresh(), passes))
            queue.ring()

    @property
    def has_waiting(self) -> bool:
        """Whether a chunk waits in a queue."""
        return any(chunk.waits for _, chunk in self._chunks())

    def numbers(self) -> set[int]:
        """The numbers of the responses with records that the streams have not finished."""
        return {chunk.part.number for queue, chunk in self._chunks() if chunk.serial > queue.done and not chunk.void}

    def _chunks(self) -> list[tuple[StreamQueue, Chunk]]:
        return [(queue, chunk) for queue in self._active for chunk in queue.chunks]

    def _from_last_to_first(self) -> list[tuple[StreamQueue, Chunk]]:
        """All chunks in the order in which they are withdrawn.

        If the first one were withdrawn first, its stream could begin the next one before that is withdrawn, and leave records out.
        """
        return self._chunks()[::-1]

    def _prune(self) -> None:
        for queue in list(self._active):
            queue.prune()
            if not queue.chunks:
                del self._active[queue]
                queue.full_since = queue.busy = None

    # -- positions --------------------------------------------------------------------------------------------------------

    def unfinished(self, thread: object = None) -> Positions:
        """The position of the first record that is not done, of each partition of which a stream has records.

        ``thread``: its own records in hand count as done.
        """
        return self._positions(lambda queue: queue in self.counted or (thread is not None and queue.thread == thread))

    def handed_out(self) -> Positions:
        """The position of the first record that was not handed out, of each partition of which a stream has records."""
        return self._positions(lambda _: True)

    def _positions(self, with_current: Callable[[StreamQueue], bool]) -> Positions:
        positions: Positions = {}
        for queue, chunk in self._chunks():
            if not chunk.void and chunk.part.tp not in positions:
                position = queue.position(chunk, with_current=with_current(queue))
                if position is not None:
                    positions[chunk.part.tp] = chunk.part.epoch, position
        return positions

    # -- records in hand --------------------------------------------------------------------------------------------------

    def has_in_hand(self, partitions: Collection[TopicPartition] | None = None, *, but: Collection[StreamQueue] = ()) -> bool:
        """Whether a stream has not finished a record of these partitions, or of any; ``but``: not of these queues."""
        return any(
            (partitions is None or chunk.part.tp in partitions) and queue not in but and queue.is_in_hand(chunk)
            for queue, chunk in self._chunks()
        )

    def busy_since(self, now: Now) -> int | None:
        """Since when the longest record in hand is processed, as far as the pump has seen it; ``None``: there is none."""
        oldest: int | None = None
        for queue in self._active:
            record = queue.in_hand
            if record is None:
                queue.busy = None
                continue
            if queue.busy is None or queue.busy[0] is not record:
                queue.busy = record, now.mono
            oldest = queue.busy[1] if oldest is None else min(oldest, queue.busy[1])
        return oldest

    def in_hand(self) -> InHand:
        """The records in hand. Any thread may call this."""
        records = [record for queue in list(self._active) if (record := queue.in_hand) is not None]
        return InHand(len(records), tuple(TopicPartition(record.topic, record.partition) for record in records))

    # -- full queues ------------------------------------------------------------------------------------------------------

    def changes(self, snapshot: Snapshot, waiting_responses: int, now: Now) -> Changes:
        """The partitions to be paused and resumed. ``waiting_responses``: fetched responses that no stream can take now."""
        full = {queue for queue in self._active if queue.waiting() >= self._most_chunks}
        for queue in self._active:
            queue.full_since = None if queue not in full else now.mono if queue.full_since is None else queue.full_since
        if not full and not self._paused:
            return Changes()
        if waiting_responses < RESPONSES or full.issuperset(self._queue_of.values()):
            full = {queue for queue in full if queue.full_since is not None and now.mono - queue.full_since >= FULL_TIME}
        paused = {tp for tp in self._queue_of if snapshot.partitions[tp].paused}
        room = {tp for tp in paused & self._paused if self._queue_of[tp].waiting() <= self._most_chunks // 2}
        pause = {tp for tp, queue in self._queue_of.items() if queue in full} - paused
        return Changes(frozenset(pause), frozenset(room - self.user_paused))

    def note_paused(self, partitions: Collection[TopicPartition]) -> None:
        """These are being paused since their queue is full: they are resumed when there is room."""
        self._paused.update(partitions)

    def note_resumed(self, partitions: Collection[TopicPartition]) -> None:
        """These were resumed."""
        self._paused.difference_update(partitions)
