"""From fetched responses to records: order, limits, epochs, what counts as done with, and damaged batches."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.delivery import Delivery, DeliveryPart
from ottla.client.calls.shared_state import SharedState
from ottla.client.events import FetchedPartition, FetchedResponse
from ottla.client.subscription import Mode, PartitionView, Snapshot
from ottla.errors import CorruptRecordError
from ottla.records import ControlType, NewRecord, encode_batch, encode_end_transaction
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from tests.unit.client.managers import T0, T1, config


def view(offset: int | None = 0, epoch: int = 1, *, fetchable: bool = True) -> PartitionView:
    position = None if offset is None else OffsetAndMetadata(offset)
    return PartitionView(epoch, position, paused=False, fetchable=fetchable, since=epoch)


def snapshot(partitions: Mapping[TopicPartition, PartitionView]) -> Snapshot:
    return Snapshot(Mode.MANUAL, frozenset({"t"}), MappingProxyType(dict(partitions)))


def batch(base_offset: int, count: int, **options: Any) -> bytes:
    return bytes(encode_batch([NewRecord(None, b"v") for _ in range(count)], base_offset=base_offset, **options))


class Collecting:
    """A collector and the responses that it is given."""

    def __init__(self, *, partitions: Mapping[TopicPartition, PartitionView] | None = None, **settings: Any) -> None:
        self.collector = FetchCollector(config(**settings), SharedState())
        self.number = 0
        self.show(partitions or {T0: view(), T1: view(epoch=2)})

    def show(self, partitions: Mapping[TopicPartition, PartitionView]) -> None:
        self.collector.on_snapshot(snapshot(partitions))

    def arrive(self, *parts: tuple[TopicPartition, int, bytes], epochs: Mapping[TopicPartition, int] | None = None) -> None:
        self.number += 1
        fetched = tuple(FetchedPartition(tp, (epochs or {T0: 1, T1: 2})[tp], offset, data, end=1_000) for tp, offset, data in parts)
        self.collector.on_fetched(FetchedResponse(self.number, 1, fetched, sum(len(data) for _, _, data in parts)), Now(0, 0))

    def collect(self, limit: int = 500) -> list[tuple[TopicPartition, list[int]]]:
        """The offsets handed out, part by part."""
        self.collector.acknowledge()
        delivery = self.collector.collect(limit)
        parts: list[DeliveryPart] = []
        if delivery is not None:
            delivery.whole, parts = True, delivery.parts
        return [(part.tp, [record.offset for record in part.records]) for part in parts]

    def drained(self) -> tuple[int, ...]:
        """The responses that are reported as drained now."""
        told: list[int] = []
        self.collector.buffer.report_drained(told.extend)
        return tuple(told)

    def offset(self, tp: TopicPartition) -> int | None:
        position = self.collector.position(tp)
        return position.offset if position is not None else None


def test_records_come_in_the_order_of_arrival_up_to_the_limit() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 3)), (T1, 0, batch(0, 3)))
    collecting.arrive((T0, 3, batch(3, 2)))
    assert collecting.collect(4) == [(T0, [0, 1, 2]), (T1, [0])]
    assert collecting.collect(4) == [(T1, [1, 2]), (T0, [3, 4])]
    assert collecting.collect(4) == []


def test_who_walked_to_the_last_record_is_behind_what_is_no_record_too() -> None:
    """A group that reads what transactions wrote would lag by their markers for ever."""
    collecting = Collecting()
    marker = bytes(encode_end_transaction(ControlType.COMMIT, producer_id=8, producer_epoch=0, base_offset=2))
    written = batch(0, 2, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    collecting.arrive((T0, 0, written + marker))
    delivery = collecting.collector.collect(500)
    assert delivery is not None
    walked = [(record.offset, collecting.offset(T0)) for record in collecting.collector.walk(delivery)]
    assert walked == [(0, 1), (1, 3)]


def test_a_response_is_reported_as_drained_once_all_of_it_is_consumed_or_dropped() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 3)), (T1, 9, batch(9, 3)))
    collecting.arrive((T0, 3, b""))
    collecting.collect(2)
    assert collecting.drained() == ()
    collecting.collect(2)
    assert collecting.drained() == (2,), "the application holds a record of the first one"
    collecting.collect(2)
    assert collecting.drained() == (1,)
    assert collecting.drained() == ()


def test_a_response_without_a_record_to_hand_out_is_reported_as_drained_at_once() -> None:
    """A poll that waits needs its memory for the next response."""
    collecting = Collecting()
    collecting.arrive((T0, 0, bytes(encode_end_transaction(ControlType.ABORT, producer_id=8, producer_epoch=0, base_offset=0))))
    assert collecting.collect() == []
    assert collecting.drained() == (1,)


def test_an_older_epoch_is_dropped() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 3)))
    collecting.show({T0: view(7, epoch=5)})
    assert collecting.collect() == []
    assert collecting.offset(T0) == 7


def test_an_epoch_that_changes_in_the_middle_of_a_response_ends_it() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 5)))
    assert collecting.collect(2) == [(T0, [0, 1])]
    collecting.show({T0: view(0, epoch=5)})
    assert collecting.collect() == []
    collecting.arrive((T0, 0, batch(0, 5)), epochs={T0: 5})
    assert collecting.collect(2) == [(T0, [0, 1])]


def test_data_fetched_from_another_offset_than_the_position_is_never_delivered() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 3)))
    collecting.arrive((T0, 0, batch(0, 3)))
    collecting.arrive((T0, 9, batch(9, 3)))
    collecting.arrive((T0, 3, batch(3, 3)))
    assert collecting.collect() == [(T0, [0, 1, 2]), (T0, [3, 4, 5])]


def test_what_is_not_held_is_dropped() -> None:
    collecting = Collecting(partitions={T0: view()})
    collecting.arrive((T1, 0, batch(0, 3)))
    assert collecting.collect() == []
    assert collecting.drained() == (1,)


def test_what_may_not_be_handed_out_now_is_kept_and_comes_without_a_gap() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 4)))
    collecting.arrive((T0, 4, batch(4, 2)), (T1, 0, batch(0, 1)))
    assert collecting.collect(2) == [(T0, [0, 1])]
    held_back = {T0: view(fetchable=False), T1: view(epoch=2)}
    collecting.show(held_back)
    assert collecting.collect() == [(T1, [0])]
    collecting.show(held_back)
    assert collecting.collect() == []
    assert collecting.drained() == ()
    collecting.show({T0: view(), T1: view(epoch=2)})
    assert collecting.collect(3) == [(T0, [2, 3]), (T0, [4])]
    assert collecting.collect() == [(T0, [5])]
    assert collecting.collect() == []
    assert set(collecting.drained()) == {1, 2}


def test_what_was_kept_of_an_older_epoch_is_dropped() -> None:
    collecting = Collecting(partitions={T0: view(fetchable=False)})
    collecting.arrive((T0, 0, batch(0, 3)))
    assert collecting.collect() == []
    assert not collecting.collector.has_buffered
    collecting.show({T0: view(1, epoch=5)})
    assert collecting.collector.has_buffered
    assert collecting.collect() == []
    assert collecting.drained() == (1,)


def test_a_batch_may_begin_before_the_position() -> None:
    collecting = Collecting(partitions={T0: view(2)})
    collecting.arrive((T0, 2, batch(0, 5)))
    assert collecting.collect() == [(T0, [2, 3, 4])]


def test_positions_move_past_what_is_never_delivered() -> None:
    collecting = Collecting(isolation_level="read_committed")
    aborted = batch(0, 3, producer_id=8, producer_epoch=0, transactional=True)
    marker = bytes(encode_end_transaction(ControlType.ABORT, producer_id=8, producer_epoch=0, base_offset=3))
    collecting.number += 1
    part = FetchedPartition(T0, 1, 0, aborted + marker, end=10, aborted=((8, 0),))
    collecting.collector.on_fetched(FetchedResponse(1, 1, (part,), 1), Now(0, 0))
    assert collecting.collect() == []
    assert collecting.offset(T0) == 4
    collecting.arrive((T0, 4, batch(4, 1)))
    assert collecting.collect() == [(T0, [4])]


def test_a_damaged_batch_comes_after_all_others_and_is_raised_until_a_seek() -> None:
    collecting = Collecting()
    damaged = bytearray(batch(0, 2) + batch(2, 2))
    damaged[-1] ^= 0xFF
    collecting.arrive((T0, 0, bytes(damaged)), (T1, 0, batch(0, 2)))
    assert collecting.collect() == [(T0, [0, 1]), (T1, [0, 1])]
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="t-0 at offset 2"):
            collecting.collect()
    collecting.arrive((T1, 2, batch(2, 1)))
    assert collecting.collect() == [(T1, [2])]
    assert collecting.offset(T0) == 2
    collecting.show({T0: view(4, epoch=9), T1: view(epoch=2)})
    assert collecting.collect() == []
    assert set(collecting.drained()) == {1, 2}


def test_two_damaged_partitions_are_raised_in_turn() -> None:
    collecting = Collecting()
    for tp in (T0, T1):
        damaged = bytearray(batch(0, 2))
        damaged[-1] ^= 0xFF
        collecting.arrive((tp, 0, bytes(damaged)))
    seen = set()
    for _ in range(2):
        with pytest.raises(CorruptRecordError) as caught:
            collecting.collect()
        seen.add(str(caught.value)[:3])
    assert seen == {"t-0", "t-1"}


def test_unchecked_checksums_let_a_flipped_value_pass() -> None:
    collecting = Collecting(check_crcs=False)
    damaged = bytearray(batch(0, 1))
    damaged[-2] ^= 0xFF
    collecting.arrive((T0, 0, bytes(damaged)))
    assert collecting.collect() == [(T0, [0])]


def test_positions_are_those_of_the_snapshot_until_something_is_consumed() -> None:
    collecting = Collecting(partitions={T0: view(5), T1: view(None, epoch=2)})
    assert collecting.collector.positions(with_current=True) == {T0: OffsetAndMetadata(5)}
    assert collecting.offset(T1) is None


def test_a_position_carries_the_epoch_of_the_batch() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 2, leader_epoch=6)))
    collecting.collect()
    assert collecting.collector.position(T0) == OffsetAndMetadata(2, leader_epoch=6)


def test_what_was_handed_out_is_done_with_when_the_application_comes_back() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 4)))
    collecting.collect(2)
    assert collecting.collector.positions(with_current=False)[T0].offset == 2
    collecting.collector.acknowledge()
    collecting.collector.mark_unprocessed()
    assert collecting.collector.positions(with_current=True)[T0].offset == 2


def test_what_is_taken_back_counts_as_not_handed_out() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 4)))
    collecting.collect(2)
    collecting.collector.mark_unprocessed()
    assert collecting.collector.positions(with_current=True)[T0].offset == 0


@pytest.mark.parametrize("committed", [1, 3, 4, 5, 1_000])
def test_what_the_application_has_committed_is_not_taken_back(committed: int) -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 4)))
    collecting.collect()
    mine, theirs = OffsetAndMetadata(committed, "mine"), OffsetAndMetadata(7)
    collecting.collector.on_commit({T0: mine, T1: theirs})
    handed_out = collecting.collector.positions(with_current=True)
    assert {tp: position.offset for tp, position in handed_out.items()} == {T0: 4, T1: 0}
    assert collecting.collector.returned_positions() == handed_out, "which is what is asked for"
    ahead = mine if committed > 4 else handed_out[T0]
    assert collecting.collector.positions_to_commit(with_current=True) == {T0: ahead, T1: theirs}
    collecting.collector.mark_unprocessed()
    assert collecting.collector.positions_to_commit(with_current=True) == {T0: mine, T1: theirs}
    assert collecting.collector.returned_positions() == {T0: mine, T1: theirs}
    assert collecting.offset(T0) == 0


@pytest.mark.parametrize("with_current", [True, False])
@pytest.mark.parametrize("committed", [3, 1_000])
def test_what_the_application_has_committed_in_a_walk_is_not_taken_back(committed: int, with_current: bool) -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 4)))
    next(walk(collecting))
    collecting.collector.on_commit({T0: OffsetAndMetadata(committed)})
    assert collecting.collector.positions_to_commit(with_current=with_current)[T0].offset == committed
    assert collecting.offset(T0) == 1


def test_a_seek_goes_back_behind_what_the_application_has_committed() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 4)))
    collecting.collect()
    collecting.collector.on_commit({T0: OffsetAndMetadata(1_000)})
    collecting.show({T0: view(2, epoch=5)})
    assert collecting.collector.positions_to_commit(with_current=True) == {T0: OffsetAndMetadata(2)}


def paused(offset: int, epoch: int, since: int) -> PartitionView:
    return PartitionView(epoch, OffsetAndMetadata(offset), paused=True, fetchable=False, since=since)


@pytest.mark.parametrize("committed", [0, 3, 1_000])
def test_what_is_in_hand_is_not_done_with_because_its_partition_was_paused(committed: int) -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 4)))
    collecting.collect()
    if committed:
        collecting.collector.on_commit({T0: OffsetAndMetadata(committed)})
    collecting.show({T0: paused(4, epoch=5, since=1)})
    assert collecting.offset(T0) == 4
    collecting.collector.mark_unprocessed()
    assert collecting.offset(T0) == 0
    assert collecting.collector.positions_to_commit(with_current=True)[T0].offset == committed


def test_the_record_in_hand_of_a_walk_is_not_done_with_because_its_partition_was_paused() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 4)))
    next(walk(collecting))
    collecting.show({T0: paused(1, epoch=5, since=1)})
    assert collecting.collector.positions_to_commit(with_current=False)[T0].offset == 0
    assert collecting.collector.positions_to_commit(with_current=True)[T0].offset == 1


def test_a_commit_says_nothing_of_what_is_handed_out_after_it() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 4)))
    collecting.collect(2)
    collecting.collector.on_commit({T0: OffsetAndMetadata(3)})
    collecting.collect(2)
    collecting.collector.mark_unprocessed()
    assert collecting.collector.positions_to_commit(with_current=True)[T0].offset == 2


def walk(collecting: Collecting, limit: int = 500) -> Any:
    collecting.collector.acknowledge()
    delivery = collecting.collector.collect(limit)
    assert isinstance(delivery, Delivery)
    return collecting.collector.walk(delivery)


def test_walking_the_record_in_hand_is_done_with_only_when_the_next_is_asked_for() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 2)), (T1, 0, batch(0, 2)))
    walking = walk(collecting)
    seen = []
    for record in walking:
        without = {tp: at.offset for tp, at in collecting.collector.positions(with_current=False).items()}
        including = {tp: at.offset for tp, at in collecting.collector.positions(with_current=True).items()}
        seen.append((record.partition, record.offset, without[T0], without[T1], including[T0], including[T1]))
    assert seen == [(0, 0, 0, 0, 1, 0), (0, 1, 1, 0, 2, 0), (1, 0, 2, 0, 2, 1), (1, 1, 2, 1, 2, 2)]
    assert {tp: at.offset for tp, at in collecting.collector.positions(with_current=False).items()} == {T0: 2, T1: 2}


def test_leaving_a_walk_loses_nothing() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 3)), (T1, 0, batch(0, 2)))
    next(walk(collecting))
    assert collecting.collector.positions(with_current=False)[T0].offset == 0
    assert collecting.collect() == [(T0, [1, 2]), (T1, [0, 1])]


def test_a_poll_in_the_body_takes_over_the_rest() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 3)), (T1, 0, batch(0, 2)))
    walking = walk(collecting)
    next(walking)
    assert collecting.collect() == [(T0, [1, 2]), (T1, [0, 1])]
    assert list(walking) == []


def test_a_seek_in_the_body_ends_that_partition_and_no_other() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 3)), (T1, 0, batch(0, 2)))
    walking = walk(collecting)
    next(walking)
    collecting.show({T0: view(50, epoch=7), T1: view(epoch=2)})
    assert [(record.partition, record.offset) for record in walking] == [(1, 0), (1, 1)]
    assert collecting.offset(T0) == 50


def test_a_rebalance_in_the_body_keeps_the_rest_out_of_the_commit() -> None:
    collecting = Collecting()
    collecting.arrive((T0, 0, batch(0, 5)), (T1, 0, batch(0, 2)))
    walking = walk(collecting)
    next(walking)
    next(walking)
    collecting.show({T0: view(fetchable=False), T1: view(epoch=2, fetchable=False)})
    assert list(walking) == []
    assert {tp: at.offset for tp, at in collecting.collector.positions(with_current=False).items()} == {T0: 2, T1: 0}
    collecting.collector.acknowledge()
    assert collecting.collector.collect(10) is None
    assert {tp: at.offset for tp, at in collecting.collector.positions(with_current=False).items()} == {T0: 2, T1: 0}


def test_the_end_of_a_partition_is_that_of_its_newest_response() -> None:
    collecting = Collecting()
    assert collecting.collector.log_end(T0) is None
    collecting.arrive((T0, 0, b""))
    assert collecting.collector.log_end(T0) == 1_000
    collecting.show({T0: view(0, epoch=9)})
    assert collecting.collector.log_end(T0) is None


def test_the_id_by_which_a_topic_was_fetched_is_known_until_its_position_is_set() -> None:
    collecting, topic_id = Collecting(), uuid.UUID(int=7)
    assert collecting.collector._shared.fetched_topic_id(T0) is None
    part = FetchedPartition(T0, 1, 0, batch(0, 2), end=2, topic_id=topic_id)
    collecting.collector.on_fetched(FetchedResponse(1, 1, (part,), len(part.data)), Now(0, 0))
    assert collecting.collector._shared.fetched_topic_id(T0) == topic_id
    assert collecting.collector._shared.fetched_topic_id(T1) is None
    collecting.show({T0: view(epoch=3), T1: view(epoch=2)})
    assert collecting.collector._shared.fetched_topic_id(T0) is None
