"""The queues of streams: which stream gets a partition, what happens when a queue is full, and which records count as done."""

from __future__ import annotations

import pytest

from ottla import Record
from ottla.client.calls.streams import FULL_TIME, Chunk, StreamQueue, Streams, divide
from ottla.client.subscription import Snapshot
from ottla.errors import IllegalStateError, OttlaError
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from tests.unit.client.consumer_with_streams import LIMIT, MOST_CHUNKS, PARTITIONS, ConsumerWithStreams

P0, P1, P2, P3 = PARTITIONS


def queue(name: str) -> StreamQueue:
    return StreamQueue(name, lambda _: False, lambda: None)


def shares(partitions: int, streams: int, threads: dict[int, int] | None = None) -> list[list[int]]:
    """The numbers of the partitions that each stream gets."""
    queues = [queue(str(number)) for number in range(streams)]
    chosen = {TopicPartition("t", partition): thread for partition, thread in (threads or {}).items()}
    divided = divide([TopicPartition("t", number) for number in range(partitions)], queues, chosen)
    return [[tp.partition for tp, owner in divided.items() if owner is each] for each in queues]


@pytest.mark.parametrize(
    ("partitions", "streams", "expected"),
    [
        (5, 2, [[0, 1, 2], [3, 4]]),
        (4, 2, [[0, 1], [2, 3]]),
        (2, 3, [[0], [1], []]),
        (0, 2, [[], []]),
        (7, 3, [[0, 1, 2], [3, 4], [5, 6]]),
    ],
)
def test_partitions_are_divided_among_streams_as_range_does(partitions: int, streams: int, expected: list[list[int]]) -> None:
    assert shares(partitions, streams) == expected


def test_where_the_group_chooses_the_thread_that_is_the_stream() -> None:
    assert shares(4, 2, {0: 1, 1: 0, 2: 1, 3: 0}) == [[1, 3], [0, 2]]
    assert shares(2, 2, {0: 1, 1: 7}) == [[], [0, 1]]  # no stream 7: as without it


def test_each_topic_has_streams_of_its_own_and_a_pattern_has_common_ones() -> None:
    topics = dict.fromkeys((TopicPartition("a", 0), TopicPartition("b", 0)))
    consumer = ConsumerWithStreams()
    views = dict.fromkeys(topics, consumer.collector.snapshot.partitions[P0])
    for by_topic, expected in (
        ({"a": [queue("a 0"), queue("a 1")], "b": [queue("b 0")]}, ["a 0", "b 0"]),
        ([queue("0"), queue("1")], ["0", "1"]),
    ):
        streams = Streams(by_topic, 2)
        streams.on_snapshot(Snapshot(partitions=views))
        assert [streams._queue_of[tp].name for tp in topics] == expected


def test_a_full_queue_takes_no_more_and_the_rest_follows_in_order() -> None:
    consumer = ConsumerWithStreams()
    for _ in range(6):
        consumer.arrive(P0, LIMIT)
        consumer.poll()
    assert consumer.queues[0].waiting() == MOST_CHUNKS
    seen = 0
    for _ in range(8):
        seen += consumer.take(0, LIMIT)  # checks the order
        consumer.poll()
        consumer.execute()
        consumer.fetch()
        consumer.poll()
    assert seen == consumer.log[P0] >= 4 * LIMIT


def test_what_waits_for_room_is_delivered_when_there_is_room_without_any_news_of_the_network_thread() -> None:
    consumer = ConsumerWithStreams(streams=1)
    for _ in range(MOST_CHUNKS + 2):
        consumer.arrive(P0, LIMIT)
    for _ in range(MOST_CHUNKS + 2):
        consumer.poll()
    version = consumer.subscription.version
    for _ in range(3):
        consumer.take(0, LIMIT)
        consumer.poll()
    assert consumer.take(0, LIMIT) == LIMIT
    assert consumer.subscription.version == version


def test_a_full_queue_does_not_stop_another_stream() -> None:
    consumer = ConsumerWithStreams()
    for _ in range(20):
        consumer.arrive(P0, LIMIT)
        consumer.arrive(P3, LIMIT)
        consumer.poll()
        consumer.poll()
        consumer.take(1, LIMIT)
    assert consumer.expected == {P0: 0, P1: 0, P2: 0, P3: 20 * LIMIT - 1 + 1}
    assert consumer.queues[0].waiting() == MOST_CHUNKS


def fill(consumer: ConsumerWithStreams, tp: TopicPartition, polls: int = MOST_CHUNKS) -> None:
    for _ in range(polls):
        consumer.arrive(tp, LIMIT)
        consumer.poll()


def pass_time(consumer: ConsumerWithStreams, duration: int) -> None:
    consumer.now = Now(consumer.now.mono + duration, consumer.now.wall + duration)
    consumer.poll()
    consumer.execute()


def test_the_partitions_of_a_queue_that_stays_full_are_paused_until_it_is_half_empty() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0)
    pass_time(consumer, FULL_TIME - 1)
    assert not [tp for tp, view in consumer.collector.snapshot.partitions.items() if view.paused]
    pass_time(consumer, 1)
    assert [tp for tp, view in consumer.collector.snapshot.partitions.items() if view.paused] == [P0, P1]
    consumer.take(0, LIMIT)
    pass_time(consumer, 0)
    assert not [tp for tp, view in consumer.collector.snapshot.partitions.items() if view.paused]
    fill(consumer, P0, 1)
    assert [consumer.take(0, LIMIT), consumer.take(0, LIMIT)] == [LIMIT, LIMIT]


def test_they_are_paused_at_once_if_their_records_keep_those_of_another_stream_from_being_fetched() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0, MOST_CHUNKS + 1)
    assert not consumer.streams.changes(consumer.collector.snapshot, 1, consumer.now).pause
    assert consumer.streams.changes(consumer.collector.snapshot, 2, consumer.now).pause == {P0, P1}
    fill(consumer, P3, MOST_CHUNKS)
    assert not consumer.streams.changes(
        consumer.collector.snapshot, 2, consumer.now
    ).pause  # there is no other one that could go on


def test_a_partition_that_the_application_has_paused_is_not_resumed() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0)
    pass_time(consumer, 0)
    pass_time(consumer, FULL_TIME)
    consumer.streams.user_paused.add(P0)
    consumer.take(0, 2 * LIMIT)
    pass_time(consumer, 0)
    assert [tp for tp, view in consumer.collector.snapshot.partitions.items() if view.paused] == [P0]


def test_a_partition_that_moves_waits_until_its_former_stream_has_finished_the_record_in_hand() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P2, 1)
    consumer.take(1)
    consumer.revoke(P0)
    consumer.execute()
    assert consumer.streams._queue_of[P2] is consumer.queues[0]
    consumer.arrive(P2, 3)
    consumer.poll()
    assert consumer.take(0) == 0
    consumer.take(1)  # requests the next one
    consumer.poll()
    assert consumer.take(0, 3) == 3
    consumer.check()


def test_a_stream_that_goes_on_while_its_chunks_are_withdrawn_leaves_no_record_out(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0)
    consumer.take(0)
    withdraw = StreamQueue.withdraw

    def withdraw_and_go_on(queue: StreamQueue, chunk: Chunk, *, void: bool) -> OffsetAndMetadata | None:
        position = withdraw(queue, chunk, void=void)
        consumer.take(0, 2 * LIMIT)
        return position

    monkeypatch.setattr(StreamQueue, "withdraw", withdraw_and_go_on)
    consumer.withdraw(P0)
    monkeypatch.undo()
    assert consumer.expected[P0] == LIMIT, "it has finished its chunk, and not begun the next one"
    consumer.check()
    consumer.execute()
    consumer.fetch()
    consumer.poll()
    assert consumer.take(0, LIMIT) == LIMIT


def test_a_stream_that_stops_before_the_pump_has_looked_at_its_progress_leaves_no_record_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0)
    consumer.take(0, 2)
    position = StreamQueue.position

    def stop_before(queue: StreamQueue, chunk: Chunk, *, with_current: bool) -> OffsetAndMetadata | None:
        assert consumer.take(0) == 0
        return position(queue, chunk, with_current=with_current)

    for _ in range(2):  # the second time there is nothing left to withdraw
        monkeypatch.setattr(StreamQueue, "position", stop_before)
        consumer.withdraw(P0)
        monkeypatch.undo()
        consumer.check()
        assert consumer.expected[P0] == 2
    consumer.execute()
    consumer.fetch()
    consumer.poll()
    assert consumer.take(0, LIMIT) == LIMIT


def test_a_record_in_hand_of_a_partition_that_was_lost_does_not_hide_the_progress_after_it_came_back() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0, 1)
    consumer.take(0)
    consumer.revoke(P0, lost=True)
    consumer.revoke(P1)
    consumer.assign(P0)  # for the first stream again, which still has the old record in hand
    fill(consumer, P0, 1)
    assert consumer.streams.unfinished() == {P0: (consumer.subscription.partitions[P0].epoch, OffsetAndMetadata(0))}
    consumer.take(0, 2)
    consumer.check()
    assert consumer.committed[P0] == 1


def test_a_commit_covers_the_records_in_hand_of_the_thread_that_commits_and_of_no_other() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0, 1)
    fill(consumer, P2, 1)
    first, second = object(), object()
    consumer.take(0, 2)
    consumer.take(1, 3)
    consumer.queues[0].thread, consumer.queues[1].thread = first, second
    collector = consumer.collector

    def offsets(thread: object) -> tuple[int, int]:
        positions = collector.returned_positions(thread)
        return positions[P0].offset, positions[P2].offset

    assert [offsets(thread) for thread in (None, first, second)] == [(1, 2), (2, 2), (1, 3)]
    collector.on_commit(collector.returned_positions(first))
    collector.acknowledge()
    assert collector.positions_to_commit(with_current=False)[P0].offset == 2, "an automatic commit takes nothing back"


def test_the_last_record_of_a_chunk_is_done_only_when_the_next_one_is_requested() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0, 1)
    consumer.take(0, LIMIT)
    consumer.check()
    assert consumer.committed[P0] == LIMIT - 1
    assert consumer.take(0) == 0
    consumer.check()
    assert consumer.committed[P0] == LIMIT


def test_a_step_that_a_signal_handler_interrupts_is_repeated() -> None:
    """Whatever part of a step was done, no record is left out."""
    for done in ("claimed", "taken", "torn"):
        consumer = ConsumerWithStreams()
        fill(consumer, P0, 1)
        queue = consumer.queues[0]
        (chunk,) = queue.chunks
        assert chunk.claim(to_iterate=True)
        if done != "claimed":
            queue._chunk = chunk
            queue.walk.take(chunk.part.records.segments if done == "taken" else (), chunk.serial)
        consumer.check()
        assert consumer.take(0, LIMIT + 1) == LIMIT, done
        consumer.check()


def test_an_error_reaches_the_streams_that_it_concerns_and_passes_when_records_arrive() -> None:
    consumer = ConsumerWithStreams()
    consumer.streams.fail(OttlaError("of a partition"), [P0])
    assert [bool(queue.errors) for queue in consumer.queues] == [True, False]
    consumer.streams.fail(IllegalStateError("of all"))
    assert [str(queue.errors[0][0]) for queue in consumer.queues] == ["of all", "of all"]
    fill(consumer, P0, 1)
    assert [bool(queue.errors) for queue in consumer.queues] == [False, True]
    consumer.streams.fail(OttlaError("of a listener"), passes=False)
    fill(consumer, P0, 1)
    assert [bool(queue.errors) for queue in consumer.queues] == [True, True]


def test_the_longest_record_in_hand_counts_from_the_time_at_which_it_was_first_seen() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0, 1)
    fill(consumer, P2, 1)
    streams, times = consumer.streams, iter(range(1_000, 9_000, 1_000))

    def busy_since() -> int | None:
        return streams.busy_since(Now(next(times), 0))

    assert busy_since() is None
    consumer.take(0)
    assert busy_since() == 2_000
    consumer.take(1)
    assert busy_since() == 2_000
    consumer.take(0)
    assert busy_since() == 3_000
    consumer.take(1, LIMIT)
    assert consumer.take(1) == 0
    assert busy_since() == 4_000
    assert streams.in_hand().partitions == (P0,)


def test_the_memory_of_a_response_is_free_when_streams_have_all_of_it_but_its_partitions_are_held_until_they_are_done() -> None:
    consumer = ConsumerWithStreams()
    drained: list[int] = []

    def poll() -> None:
        consumer.poll()
        consumer.collector.report_drained(drained.extend, consumer.now)

    consumer.arrive(P0, 2 * LIMIT)
    poll()
    poll()
    assert consumer.collector.buffer.responses == 1, "the second half was read in this poll"
    poll()
    assert consumer.collector.buffer.take_moved() == (1,)
    assert (consumer.collector.buffer.responses, drained) == (0, [])
    assert consumer.take(0, 2 * LIMIT) == 2 * LIMIT
    poll()
    assert drained == []
    consumer.take(0)
    poll()
    assert drained == [1]


def test_data_that_was_read_in_part_is_held_until_the_streams_are_done_with_it_even_if_the_rest_was_dropped() -> None:
    consumer = ConsumerWithStreams()
    drained: list[int] = []
    consumer.arrive(P0, 2 * LIMIT)
    consumer.poll()
    (positions,) = [consumer.collector.positions(with_current=True)]
    consumer.subscription.pause([P0], {P0: (consumer.subscription.partitions[P0].epoch, positions[P0])})
    consumer.publish()
    for _ in range(2):
        consumer.poll()
    consumer.collector.report_drained(drained.extend, consumer.now)
    assert drained == []
    assert consumer.take(0, LIMIT + 1) == LIMIT
    consumer.poll()
    consumer.collector.report_drained(drained.extend, consumer.now)
    assert drained == [1]


def test_all_streams_end_after_their_current_record() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0)
    consumer.take(0)
    consumer.collector.withdraw(PARTITIONS)
    consumer.streams.end()
    assert [queue.ended for queue in consumer.queues] == [True, True]
    assert consumer.take(0) == 0
    consumer.check()
    assert consumer.committed[P0] == 1


def test_records_of_one_stream_are_records() -> None:
    consumer = ConsumerWithStreams()
    fill(consumer, P0, 1)
    assert isinstance(next(consumer.queues[0].walk), Record)
