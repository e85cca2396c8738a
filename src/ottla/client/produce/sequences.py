"""The sequence numbers of an idempotent producer (KIP-98, KIP-360): each batch is written once, and in order.

Owns producer id and epoch, and for each partition the next sequence number and the batches that have one. Must not know requests.
Invariants: a batch keeps its identity (producer id, epoch, sequence number) while it may have been written under it; while a gap in
the numbers is possible, no new batch gets a number.

What a gap is: 1. Batches 0 and 1 are sent. 2. Batch 0 expires without a response, so it may have been written or not. 3. If batch 1
is acknowledged, 0 was written before it. If it is refused as out of order, 0 was not, and the numbers start again in a new epoch.

A broker without any state of a producer accepts every number as the first one. So batch 1 could be written before batch 0 when 0 is
refused. Therefore the first batch of an epoch is alone in flight, and so is one that is sent again: the topic may have been
recreated. Kafka's own producer also renumbers batches in flight, and may double those whose responses are lost.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ottla.protocol import ErrorCode
from ottla.records.batch_states import BatchState
from ottla.records.producer_queues import PartitionQueue, ProducerBatch

_log = logging.getLogger(__name__)

_MAX_SEQUENCE = 2**31 - 1
_MAX_EPOCH = 2**15 - 1
_REMEMBERED = 5
"""As many batches of a producer a broker remembers in a partition. An older one that is sent again looks like a gap to it."""

_GAPS = frozenset({ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id})
_WAITING = frozenset({BatchState.CLOSED, BatchState.RETRYING})


class ProducerIdAndEpoch(NamedTuple):
    """The identity of a producer in its batches."""

    producer_id: int
    epoch: int


def add_to_sequence(sequence: int, count: int) -> int:
    """The sequence number ``count`` records later; 2**31 - 1 is followed by 0."""
    return (sequence + count) & _MAX_SEQUENCE


class PartitionSequences:
    """The sequence numbers of one partition, which ``producer`` counts."""

    def __init__(self, producer: ProducerIdAndEpoch) -> None:
        self.producer = producer
        self.next = 0
        self.is_confirmed = False
        """Whether a broker has written a batch of ``producer``."""
        self.numbered: deque[ProducerBatch] = deque()
        """By their numbers: the batches without an outcome, and the ``expired`` ones."""
        self.expired: set[ProducerBatch] = set()
        """The batches that will not be sent again, and of which later ones have to show whether they were written."""
        self.in_doubt: set[ProducerBatch] = set()
        """The batches that may have been written: in flight, or with a request that got no clear answer."""
        self.parts_in_doubt: set[ProducerBatch] = set()
        """The parts of divided batches that were in doubt. A broker that has the whole batch does not recognize its parts."""

    @property
    def oldest(self) -> ProducerBatch | None:
        """The first batch that is still to be written."""
        return next((batch for batch in self.numbered if batch not in self.expired), None)

    @property
    def oldest_in_doubt(self) -> ProducerBatch | None:
        """The first batch that is still to be written unless it was."""
        return next((batch for batch in self.numbered if batch in self.in_doubt and batch not in self.expired), None)

    def start_again(self, producer: ProducerIdAndEpoch) -> None:
        """Renumber all batches without an outcome, from 0 on, for a new epoch."""
        self.forget_expired()
        self.producer, self.next, self.is_confirmed = producer, 0, False
        self.in_doubt.clear()
        for batch in self.numbered:
            self.number(batch)

    def number(self, batch: ProducerBatch) -> None:
        """Give a batch the next sequence number."""
        batch.producer, batch.sequence = self.producer, self.next
        self.next = add_to_sequence(self.next, batch.count)

    def remove(self, batch: ProducerBatch) -> None:
        """Forget a batch of which it is known whether it was written."""
        self.numbered.remove(batch)
        for batches in (self.expired, self.in_doubt, self.parts_in_doubt):
            batches.discard(batch)

    def forget_expired(self) -> None:
        """Forget the batches of which nothing more needs to be known."""
        for batch in list(self.expired):
            self.remove(batch)


class Sequences:
    """The sequence numbers of a producer. ``current`` is ``None`` until the broker has assigned an id.

    ``begins_epochs``: whether a gap is a reason to begin an epoch. With transactions only their coordinator begins one, after the
    transaction with the gap was aborted.
    """

    def __init__(self, *, begins_epochs: bool = True) -> None:
        self._begins_epochs = begins_epochs
        self.current: ProducerIdAndEpoch | None = None
        self._partitions: dict[PartitionQueue, PartitionSequences] = {}
        self._doubts: dict[PartitionQueue, None] = {}
        """The partitions with expired batches in doubt."""
        self._gaps: dict[PartitionQueue, None] = {}
        """The partitions with a gap in their numbers, which have to start again in a new epoch."""

    def of(self, queue: PartitionQueue) -> PartitionSequences:
        """The numbers of a partition."""
        found = self._partitions.get(queue)
        if found is None:
            assert self.current is not None
            found = self._partitions[queue] = PartitionSequences(self.current)
        return found

    def first(self, queue: PartitionQueue) -> ProducerBatch | None:
        """The batch in a partition's queue that is sent next: the oldest, in a gap the oldest of those that keep their numbers."""
        doubtful = self._partitions[queue].oldest_in_doubt if queue in self._gaps else None
        if doubtful is not None and doubtful.state in _WAITING:
            return doubtful
        return queue.closed[0] if queue.closed else None

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether the first batch of a partition may be sent now, as far as sequence numbers are concerned."""
        if self.current is None:
            return False
        sequences = self.of(queue)
        batch = self.first(queue)
        if batch is not None and batch.sequence is not None:
            # It is sent again: in order, so that the broker gets the batches after it only when it has this one. In a gap only a
            # batch is that may have been written, since it keeps its number.
            return batch is (sequences.oldest_in_doubt if queue in self._gaps else sequences.oldest)
        if queue in self._gaps:
            return False
        if not sequences.numbered:
            return True
        is_clear = sequences.producer == self.current and sequences.is_confirmed and not sequences.expired
        return is_clear and not sequences.numbered[0].attempts and len(sequences.numbered) < _REMEMBERED

    def number(self, batch: ProducerBatch) -> None:
        """Give a batch that is sent for the first time its number."""
        if batch.sequence is not None:
            return
        sequences = self.of(batch.queue)
        assert self.current is not None
        if sequences.producer != self.current:
            sequences.start_again(self.current)
        sequences.number(batch)
        sequences.numbered.append(batch)

    def sent(self, batch: ProducerBatch) -> bool:
        """Note that a batch becomes part of a request. Return whether an earlier request may have written it."""
        in_doubt = self.of(batch.queue).in_doubt
        was_in_doubt = batch in in_doubt
        in_doubt.add(batch)
        return was_in_doubt

    def is_in_doubt(self, batch: ProducerBatch) -> bool:
        """Whether a batch may have been written."""
        return batch.queue in self._partitions and batch in self._partitions[batch.queue].in_doubt

    def acknowledged(self, batch: ProducerBatch) -> None:
        """Note that a batch was written, perhaps after it had expired. So the expired ones before it were, too."""
        sequences = self.of(batch.queue)
        if batch not in sequences.numbered:
            return
        sequences.is_confirmed = True
        for other in list(sequences.numbered):
            if other is batch or other in sequences.expired:
                sequences.remove(other)
            if other is batch:
                break

    def refused(self, batch: ProducerBatch, code: int, *, was_in_doubt: bool) -> bool:
        """Note that a request has not written a batch. Return whether it may be sent again, as far as its number is concerned.

        OUT_OF_ORDER_SEQUENCE_NUMBER: the broker lacks an earlier batch. If that one is still to be sent again, this one only has to
        wait for it. UNKNOWN_PRODUCER_ID: the broker has forgotten the producer, whose records were deleted (KIP-360). Both also say
        that no earlier request has written the batch, since the broker would recognize it. Not so the part of a batch.
        """
        sequences = self.of(batch.queue)
        if batch not in sequences.numbered:
            return True
        is_gap = code in _GAPS
        is_expired, is_oldest = batch in sequences.expired, batch is sequences.oldest
        if is_gap and is_oldest and batch in sequences.parts_in_doubt:
            return False
        if is_gap or not was_in_doubt:
            sequences.in_doubt.discard(batch)
            if is_expired:
                sequences.remove(batch)
        if (is_expired and batch not in sequences.numbered) or (is_gap and is_oldest):
            self._gaps[batch.queue] = None
        return True

    def failed(self, batch: ProducerBatch) -> None:
        """Note that a batch will not be sent again. If it may have been written, the batches after it have to show that."""
        sequences = self._partitions.get(batch.queue)
        if sequences is None or batch not in sequences.numbered:
            return
        if batch in sequences.in_doubt:
            sequences.expired.add(batch)
            self._doubts[batch.queue] = None
        else:
            sequences.remove(batch)
            self._gaps[batch.queue] = None

    def place(self, batch: ProducerBatch) -> int:
        """The number of batches in the queue of its partition that come before this one."""
        place = 0
        for other in self.of(batch.queue).numbered:
            if other is batch:
                break
            place += other.state in _WAITING
        return place

    def divided(self, batch: ProducerBatch, parts: Iterable[ProducerBatch]) -> None:
        """Give the parts of a batch its sequence numbers."""
        sequences = self.of(batch.queue)
        at, sequence = sequences.numbered.index(batch), batch.sequence
        assert sequence is not None
        in_doubt = batch in sequences.in_doubt
        sequences.remove(batch)
        for place, part in enumerate(parts):
            part.producer, part.sequence = batch.producer, sequence
            sequence = add_to_sequence(sequence, part.count)
            sequences.numbered.insert(at + place, part)
            if in_doubt:
                sequences.in_doubt.add(part)
                sequences.parts_in_doubt.add(part)

    def resolve(self) -> None:
        """Decide doubts about which nothing more can be learnt, and begin a new epoch if one is needed."""
        for queue in list(self._doubts):
            sequences = self._partitions[queue]
            if sequences.oldest is None and sequences.expired:
                sequences.forget_expired()
                self._gaps[queue] = None
            if not sequences.expired:
                del self._doubts[queue]
        if self.current is not None and self._begins_epochs:
            self._start_again([queue for queue in self._gaps if self._partitions[queue].oldest_in_doubt is None])

    def _start_again(self, queues: list[PartitionQueue]) -> None:
        if any(self._partitions[queue].producer == self.current for queue in queues):
            assert self.current is not None
            if self.current.epoch == _MAX_EPOCH:
                _log.info("the epochs of producer id %d are used up: the producer gets another id", self.current.producer_id)
                self.current = None
                return
            self.current = self.current._replace(epoch=self.current.epoch + 1)
        for queue in queues:
            assert self.current is not None
            self._partitions[queue].start_again(self.current)
            del self._gaps[queue]

    def has_gap(self, queue: PartitionQueue) -> bool:
        """Whether no batch of a partition can be written in this epoch."""
        return queue in self._gaps

    def restart(self, producer: ProducerIdAndEpoch) -> None:
        """Begin an epoch that the coordinator of the transactions has assigned. No batch has a number."""
        self.current = producer
        self._partitions.clear()
        self._doubts.clear()
        self._gaps.clear()

    def assigned(self, producer: ProducerIdAndEpoch) -> None:
        """Use the id that a broker has assigned."""
        self.current = producer
