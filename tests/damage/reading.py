"""Everything that a broker says of its data, asked as clients ask.

Owns the requests. Must not know what the answers should be. Invariant: a reader stops at no fault: it notes the error, and goes on
with the next offset, as an application would that seeks past what it cannot read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    describe_producers_request,
    fetch_request,
    list_offsets_request,
    offset_fetch_request,
)
from ottla.simulation.clock import START
from tests.damage.batches import Batch, Row, batch_at
from tests.damage.directory import ALL, GROUPS, TRANSACTIONAL
from tests.simulation.broker import CoreUnderTest
from tests.simulation.files import content
from tests.unit.broker.transactional import state_of

Place = tuple[str, int]

LATEST, EARLIEST = -1, -2
TIMES = [START.wall + delta for delta in (-3_000_000, -900_000, -700_000, -600_000, -500_000, -300_000, 0, 1, 4, 60_000)]
_UNREADABLE = (ErrorCode.corrupt_message, ErrorCode.kafka_storage_error)


@dataclass
class Read:
    """What readers got of one partition."""

    start: int = 0
    end: int = 0
    stable: int = 0
    epoch: int = -1
    batches: dict[bool, list[Batch]] = field(default_factory=lambda: {False: [], True: []})
    """For readers of all records and for those of committed ones, without what these leave out."""
    unreadable: dict[bool, set[int]] = field(default_factory=lambda: {False: set(), True: set()})
    """Offsets at which a reader got an error, or a batch whose checksum does not fit."""
    errors: set[ErrorCode] = field(default_factory=set)
    times: dict[int, tuple[int, int] | ErrorCode] = field(default_factory=dict)
    producers: Any = None

    def rows(self, *, committed: bool = False) -> dict[int, Row]:
        return {row.offset: row for batch in self.batches[committed] if not batch.control for row in batch.rows}


@dataclass
class Everything:
    """What a broker says."""

    partitions: dict[Place, Read]
    offsets: dict[tuple[str, str, int], int | ErrorCode]
    transactions: dict[str, tuple[str, int]]


def read_everything(broker: CoreUnderTest, size: int) -> Everything:
    """Ask for everything, ``size`` bytes a partition at once."""
    partitions = {place: Read() for place in ALL}
    for timestamp in (EARLIEST, LATEST, *TIMES):
        for place, answer in _list_offsets(broker, timestamp, committed=False).items():
            read = partitions[place]
            if answer.error_code is not ErrorCode.none:
                read.errors.add(answer.error_code)
                read.times[timestamp] = answer.error_code
            elif timestamp == EARLIEST:
                read.start = answer.offset
            elif timestamp == LATEST:
                read.end, read.stable, read.epoch = answer.offset, answer.offset, answer.leader_epoch
            else:
                read.times[timestamp] = (answer.offset, answer.timestamp)
    for place, answer in _list_offsets(broker, LATEST, committed=True).items():
        if answer.error_code is ErrorCode.none:
            partitions[place].stable = answer.offset
    for committed in (False, True):
        _consume(broker, partitions, size, committed=committed)
    for place, producers in _producers(broker).items():
        partitions[place].producers = producers
    return Everything(partitions, _offsets(broker), {name: state_of(broker, name) for name in TRANSACTIONAL})


def _consume(broker: CoreUnderTest, partitions: dict[Place, Read], size: int, *, committed: bool) -> None:
    positions = {place: read.start for place, read in partitions.items()}
    while wanted := [
        place
        for place, read in partitions.items()
        if positions[place] < (read.stable if committed else read.end) and ErrorCode.kafka_storage_error not in read.errors
    ]:
        for place, answer in _fetch(broker, {place: positions[place] for place in wanted}, size, committed=committed).items():
            read = partitions[place]
            if answer.error_code is not ErrorCode.none:
                assert answer.error_code in _UNREADABLE, f"{place} answers {answer.error_code!r} at offset {positions[place]}"
                read.errors.add(answer.error_code)
                read.unreadable[committed].add(positions[place])
                positions[place] += 1
                continue
            data = content(answer.records) if len(answer.records) else b""
            if not data:  # there is nothing up to the end
                positions[place] = max(read.end, read.stable)
                continue
            positions[place] = _take(read, data, positions[place], answer.aborted_transactions or (), committed=committed)


def _take(read: Read, data: bytes, offset: int, aborted: Any, *, committed: bool) -> int:
    """Take the batches of an answer as a consumer does; returns the next offset."""
    upcoming = sorted(aborted, key=lambda one: one.first_offset)
    aborting: set[int] = set()
    position = 0
    while position < len(data):
        batch = batch_at(data, position)
        if batch is None:
            read.unreadable[committed].add(offset)
            return offset + 1
        position += len(batch.data)
        if batch.last < offset:
            continue
        assert batch.base >= offset or not position > len(batch.data), f"offset {batch.base} comes after {offset - 1}"
        while upcoming and upcoming[0].first_offset <= batch.last:
            aborting.add(upcoming.pop(0).producer_id)
        if batch.control:
            aborting.discard(batch.producer_id)
        if not (committed and batch.transactional and not batch.control and batch.producer_id in aborting):
            rows = tuple(row for row in batch.rows if row.offset >= offset)
            read.batches[committed].append(batch._replace(rows=rows))
        offset = batch.last + 1
    return offset


def _fetch(broker: CoreUnderTest, positions: dict[Place, int], size: int, *, committed: bool) -> dict[Place, Any]:
    topics = tuple(
        fetch_request.FetchTopic(
            topic=name,
            partitions=(
                fetch_request.FetchPartition(
                    partition=number, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=size
                ),
            ),
        )
        for (name, number), offset in positions.items()
    )
    message = fetch_request.FetchRequest(
        max_wait=timedelta(0),
        min_bytes=0,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,
        topics=topics,
        forgotten_topics_data=(),
    )
    answers = broker.ask(Api.FETCH, message, version=12).responses
    found = {(topic.topic, topic.partitions[0].partition_index): topic.partitions[0] for topic in answers}
    # The first partition of a request gets a batch even where it is larger than allowed; the others have to ask again.
    empty = [place for place, one in found.items() if one.error_code is ErrorCode.none and not len(one.records)]
    for place in empty:
        if len(positions) > 1:
            found |= _fetch(broker, {place: positions[place]}, size, committed=committed)
    return found


def _list_offsets(broker: CoreUnderTest, timestamp: int, *, committed: bool) -> dict[Place, Any]:
    topics = tuple(
        list_offsets_request.ListOffsetsTopic(
            name=name, partitions=(list_offsets_request.ListOffsetsPartition(partition_index=number, timestamp=timestamp),)
        )
        for name, number in ALL
    )
    message = list_offsets_request.ListOffsetsRequest(
        replica_id=-1, isolation_level=int(committed), topics=topics, timeout=timedelta(0)
    )
    answers = broker.ask(Api.LIST_OFFSETS, message).topics
    return {(topic.name, topic.partitions[0].partition_index): topic.partitions[0] for topic in answers}


def _producers(broker: CoreUnderTest) -> dict[Place, Any]:
    topics = tuple(describe_producers_request.TopicRequest(name=name, partition_indexes=(number,)) for name, number in ALL)
    answers = broker.ask(Api.DESCRIBE_PRODUCERS, describe_producers_request.DescribeProducersRequest(topics=topics)).topics
    return {
        (topic.name, one.partition_index): sorted(
            (state.producer_id, state.producer_epoch, state.last_sequence, state.current_txn_start_offset)
            for state in one.active_producers
        )
        for topic in answers
        for one in topic.partitions
    }


def _offsets(broker: CoreUnderTest) -> dict[tuple[str, str, int], int | ErrorCode]:
    """The committed offset of each group and partition, or the error in its place."""
    wanted = {"plain": (0, 1), "t": (0,)}
    found: dict[tuple[str, str, int], int | ErrorCode] = {}
    for group in (*GROUPS, "readers"):
        topics = tuple(
            offset_fetch_request.OffsetFetchRequestTopics(name=name, partition_indexes=numbers) for name, numbers in wanted.items()
        )
        message = offset_fetch_request.OffsetFetchRequest(
            groups=(offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=topics),), require_stable=False
        )
        answer = broker.ask(Api.OFFSET_FETCH, message, version=9).groups[0]
        if answer.error_code is not ErrorCode.none:
            found |= {(group, name, number): ErrorCode(answer.error_code) for name, numbers in wanted.items() for number in numbers}
            continue
        for topic in answer.topics:
            for one in topic.partitions:
                code = ErrorCode(one.error_code)
                found[group, topic.name, one.partition_index] = one.committed_offset if code is ErrorCode.none else code
    return found
