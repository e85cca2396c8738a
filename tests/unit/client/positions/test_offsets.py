"""The way of each partition to its position, and the offsets of timestamps."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.effects import ToNode
from ottla.client.events import Reply
from ottla.client.positions.offsets import OffsetsManager
from ottla.client.subscription import EARLIEST, LATEST, Ago, Phase, Reset, SubscriptionState
from ottla.errors import (
    AuthenticationError,
    DisconnectedError,
    GroupAuthorizationFailedError,
    InvalidTopicError,
    NoOffsetForPartitionError,
    OttlaTimeoutError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedApiError,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import list_offsets_request, list_offsets_response
from ottla.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from tests.unit.client.managers import NO_THROTTLE, T0, T1, T2, Asked, Cluster, Replies, backoff, config, unmade


class FixedStore:
    """Keeps look-ups of committed positions until the test answers them."""

    def __init__(self) -> None:
        self.asked: list[tuple[frozenset[TopicPartition], Reply]] = []

    def commit(self, *arguments: Any) -> None:
        raise AssertionError("nothing is committed here")

    def fetch(self, partitions: frozenset[TopicPartition], deadline: int | None, reply: Reply) -> None:
        assert deadline is not None
        self.asked.append((partitions, reply))


class Offsets(Asked):
    def __init__(self, *, reset_to: Reset | None = EARLIEST, store: bool = False, **settings: Any) -> None:
        self.subscription = SubscriptionState(reset_to)
        self.cluster = Cluster()
        self.store = FixedStore() if store else None
        self.unreachable: Any = None
        manager = OffsetsManager(
            config(**settings), self.subscription, self.cluster.manager, self.store, backoff(), lambda *_: self.unreachable
        )
        super().__init__(manager)
        self.manager: OffsetsManager

    def list(self, timestamps: dict[TopicPartition, int], deadline: int = 1_000) -> Replies:
        replies = Replies()
        self.manager.list_offsets(timestamps, deadline, replies, self.now)
        return replies

    def phase(self, tp: TopicPartition) -> Phase:
        return self.subscription.partitions[tp].phase


def listed(*rows: tuple[TopicPartition, int, int], timestamp: int = -1) -> Any:
    """(partition, offset, error code)."""
    parts = tuple(
        list_offsets_response.ListOffsetsPartitionResponse(
            partition_index=tp.partition, error_code=ErrorCode(code), timestamp=timestamp, offset=offset, leader_epoch=3
        )
        for tp, offset, code in rows
    )
    topic = list_offsets_response.ListOffsetsTopicResponse(name="t", partitions=parts)
    return list_offsets_response.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=(topic,))


def test_without_a_group_positions_are_reset_as_configured() -> None:
    offsets = Offsets(reset_to=LATEST)
    offsets.subscription.assign([T0, T2])
    send = offsets.one(Api.LIST_OFFSETS)
    assert send.target == ToNode(1)
    (topic,) = send.message.topics
    assert [(part.partition_index, part.timestamp, part.current_leader_epoch) for part in topic.partitions] == [
        (0, -1, 3),
        (2, -1, 3),
    ]
    assert offsets.poll() == []
    offsets.answer(send, listed((T0, 40, 0), (T2, 41, 0)))
    assert offsets.subscription.partitions[T0].position == OffsetAndMetadata(40)
    assert offsets.subscription.partitions[T2].fetch == 41


def test_each_leader_is_asked_for_its_own() -> None:
    offsets = Offsets()
    offsets.subscription.assign([T0, T1])
    assert {send.target for send in offsets.poll()} == {ToNode(1), ToNode(2)}


def test_a_committed_position_is_taken_and_the_rest_is_reset() -> None:
    offsets = Offsets(store=True)
    assert offsets.store is not None
    offsets.subscription.set_partitions([T0, T1])
    assert offsets.poll() == []
    ((partitions, reply),) = offsets.store.asked
    assert partitions == {T0, T1}
    reply({T0: OffsetAndMetadata(7, "m", 3), T1: None}, None)
    assert offsets.subscription.partitions[T0].position == OffsetAndMetadata(7, "m", 3)
    offsets.one(Api.LIST_OFFSETS)


def test_partitions_behind_one_whose_look_up_fails_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = Offsets(store=True)
    assert offsets.store is not None
    offsets.subscription.set_partitions([T0, T1])
    offsets.poll()
    committed = {T0: OffsetAndMetadata(7, "", 3), T1: OffsetAndMetadata(8, "", 3)}

    def out_of_memory(*arguments: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(offsets.cluster.manager, "observe_epoch", out_of_memory)
        with pytest.raises(MemoryError):
            offsets.store.asked[0][1](committed, None)
    offsets.poll()
    partitions, reply = offsets.store.asked[1]
    assert partitions == {T0, T1}
    reply(committed, None)
    assert (offsets.phase(T0), offsets.phase(T1)) == (Phase.FETCHING, Phase.FETCHING)


def test_the_epoch_of_a_commit_is_known_from_then_on() -> None:
    offsets = Offsets(store=True)
    assert offsets.store is not None
    offsets.subscription.set_partitions([T0])
    offsets.poll()
    offsets.store.asked[0][1]({T0: OffsetAndMetadata(7, "m", 9)}, None)
    leader = offsets.cluster.manager.current.leader(T0)
    assert leader is not None
    assert leader.epoch == 9, "an older leader does not know this epoch, and will refuse"


def test_offsets_are_listed_without_an_epoch_that_the_leader_never_learns() -> None:
    offsets = Offsets(reset_to=EARLIEST)
    offsets.cluster.manager.observe_epoch(T0, 1_000)
    offsets.subscription.assign([T0])
    epochs: list[int] = []
    while epochs[-1:] != [3]:
        for send in offsets.poll(offsets.mono + 50):
            (part,) = send.message.topics[0].partitions
            epochs.append(part.current_leader_epoch)
            offsets.answer(send, listed((T0, 0, 75) if part.current_leader_epoch == 1_000 else (T0, 4, 0)))
            offsets.cluster.tell(offsets.mono)
    assert (epochs[0], epochs[-2:]) == (1_000, [1_000, 3])
    assert 2_000 <= offsets.mono < 5_000
    assert offsets.subscription.partitions[T0].fetch == 4


def test_a_look_up_for_what_went_meanwhile_is_passed_over() -> None:
    offsets = Offsets(store=True)
    assert offsets.store is not None
    offsets.subscription.set_partitions([T0, T1])
    offsets.poll()
    offsets.subscription.set_partitions([])
    offsets.subscription.set_partitions([T0])
    offsets.store.asked[0][1](None, GroupAuthorizationFailedError("denied"))
    assert offsets.subscription.partitions[T0].problem is None
    offsets.poll()
    assert [partitions for partitions, _ in offsets.store.asked[1:]] == [{T0}]


def test_who_reads_what_is_committed_asks_for_its_end() -> None:
    offsets = Offsets(reset_to=LATEST, isolation_level="read_committed")
    offsets.subscription.assign([T0])
    assert offsets.one(Api.LIST_OFFSETS).message.isolation_level == 1


def test_a_look_up_that_failed_never_leads_to_a_reset() -> None:
    offsets = Offsets(store=True)
    assert offsets.store is not None
    offsets.subscription.set_partitions([T0])
    offsets.poll()
    denied = GroupAuthorizationFailedError("denied")
    offsets.store.asked[0][1](None, denied)
    assert offsets.poll() == []
    assert offsets.subscription.partitions[T0].problem is denied
    assert offsets.phase(T0) is Phase.INITIALIZING
    offsets.poll(999)
    assert len(offsets.store.asked) == 1
    offsets.poll(1_000)
    assert len(offsets.store.asked) == 2
    offsets.store.asked[1][1]({T0: OffsetAndMetadata(3)}, None)
    assert offsets.subscription.partitions[T0].problem is None


def test_no_position_and_no_policy_is_a_problem_until_a_seek() -> None:
    offsets = Offsets(reset_to=None)
    offsets.subscription.assign([T0])
    assert offsets.poll() == []
    assert isinstance(offsets.subscription.partitions[T0].problem, NoOffsetForPartitionError)
    assert offsets.poll(10_000) == []
    offsets.subscription.seek({T0: OffsetAndMetadata(1)})
    assert offsets.subscription.partitions[T0].problem is None


def test_a_seek_wins_over_a_late_reset_and_over_a_late_commit() -> None:
    offsets = Offsets()
    offsets.subscription.assign([T0])
    send = offsets.one(Api.LIST_OFFSETS)
    offsets.subscription.seek({T0: OffsetAndMetadata(99)})
    offsets.answer(send, listed((T0, 0, 0)))
    assert offsets.subscription.partitions[T0].fetch == 99
    offsets = Offsets(store=True)
    assert offsets.store is not None
    offsets.subscription.set_partitions([T0])
    offsets.poll()
    offsets.subscription.seek({T0: OffsetAndMetadata(99)})
    offsets.store.asked[0][1]({T0: OffsetAndMetadata(5)}, None)
    assert offsets.subscription.partitions[T0].fetch == 99


def test_a_reset_that_changed_its_mind_ignores_the_first_answer() -> None:
    offsets = Offsets()
    offsets.subscription.assign([T0])
    first = offsets.one(Api.LIST_OFFSETS)
    offsets.subscription.reset([T0], LATEST)
    second = offsets.one(Api.LIST_OFFSETS)
    offsets.answer(first, listed((T0, 0, 0)))
    assert offsets.phase(T0) is Phase.RESETTING
    offsets.answer(second, listed((T0, 50, 0)))
    assert offsets.subscription.partitions[T0].fetch == 50


def test_what_was_taken_away_meanwhile_gets_no_position() -> None:
    offsets = Offsets()
    offsets.subscription.assign([T0, T2])
    send = offsets.one(Api.LIST_OFFSETS)
    offsets.subscription.assign([T2])
    offsets.answer(send, listed((T0, 1, 0), (T2, 2, 0)))
    assert list(offsets.subscription.partitions) == [T2]
    assert offsets.poll(10_000) == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unsupported_compression_type,
        ErrorCode.offset_not_available,
        ErrorCode.invalid_registration,
    ],
)
def test_a_partition_that_failed_is_asked_for_again_and_the_metadata_too(code: int) -> None:
    offsets = Offsets()
    replies = offsets.list({T0: EARLIEST, T2: EARLIEST}, 10_000)
    offsets.answer(offsets.one(Api.LIST_OFFSETS), listed((T0, 1, 0), (T2, -1, code)))
    assert offsets.cluster.asked
    assert offsets.poll(99) == []
    send = offsets.one(Api.LIST_OFFSETS, 100)
    assert [part.partition_index for part in send.message.topics[0].partitions] == [2]
    offsets.answer(send, listed((T2, 4, 0)))
    assert replies.value == {T0: OffsetAndTimestamp(1, -1, 3), T2: OffsetAndTimestamp(4, -1, 3)}


def test_a_broker_that_fails_is_asked_again() -> None:
    offsets = Offsets()
    replies = offsets.list({T0: EARLIEST}, 10_000)
    offsets.fail(offsets.one(Api.LIST_OFFSETS), DisconnectedError("broke"))
    offsets.answer(offsets.one(Api.LIST_OFFSETS, 100), listed((T0, 1, 0)))
    assert replies.value == {T0: OffsetAndTimestamp(1, -1, 3)}


@pytest.mark.parametrize(("code", "offset"), [(43, 5), (0, -1)])
def test_no_such_offset(code: int, offset: int) -> None:
    offsets = Offsets()
    replies = offsets.list({T0: 77})
    offsets.answer(offsets.one(Api.LIST_OFFSETS), listed((T0, offset, code)))
    assert replies.value == {T0: None}


def test_lacking_rights_end_a_question_and_are_a_problem_of_a_reset() -> None:
    offsets = Offsets()
    replies = offsets.list({T0: 77})
    offsets.answer(offsets.one(Api.LIST_OFFSETS), listed((T0, -1, 29)))
    assert type(replies.error) is TopicAuthorizationFailedError
    offsets.subscription.assign([T0])
    offsets.answer(offsets.one(Api.LIST_OFFSETS), listed((T0, -1, 29)))
    assert type(offsets.subscription.partitions[T0].problem) is TopicAuthorizationFailedError


def test_an_unknown_leader_is_waited_for_no_longer_than_needed() -> None:
    offsets = Offsets()
    offsets.cluster.tell(leaders={T0: -1})
    replies = offsets.list({T0: EARLIEST}, 10_000)
    assert offsets.poll() == []
    assert offsets.cluster.asked
    offsets.cluster.tell(leaders={T0: 2})
    offsets.answer(offsets.one(Api.LIST_OFFSETS, 1), listed((T0, 0, 0)))
    assert replies.value


def test_the_deadline_says_what_is_missing_and_why() -> None:
    offsets = Offsets()
    offsets.cluster.tell(leaders={T0: -1})
    replies = offsets.list({T0: EARLIEST}, 500)
    offsets.poll()
    assert offsets.wake_at is not None
    assert offsets.poll(500) == []
    assert isinstance(replies.error, OttlaTimeoutError)
    assert "t-0" in str(replies.error)
    assert "leader" in str(replies.error)


def test_the_deadline_of_an_unreachable_cluster_says_that() -> None:
    offsets = Offsets()
    offsets.unreachable = DisconnectedError("connection refused")
    replies = offsets.list({T0: EARLIEST}, 500)
    offsets.poll()
    offsets.poll(500)
    assert replies.error is offsets.unreachable


def test_a_permanent_metadata_error_fails_a_look_up_at_once_and_a_reset_goes_on() -> None:
    offsets = Offsets()
    offsets.cluster.tell(leaders={})
    offsets.subscription.assign([T0])
    replies = offsets.list({T0: EARLIEST}, 500)
    offsets.poll()
    refused = AuthenticationError("no such user")
    offsets.cluster.manager.on_failure(DisconnectedError("broke"), offsets.now)
    assert replies.got == []
    offsets.cluster.manager.on_failure(refused, offsets.now)
    assert replies.error is refused
    offsets.cluster.tell()
    assert [send.api for send in offsets.poll(100)] == [Api.LIST_OFFSETS]


def test_a_transient_failure_is_the_cause_of_the_timeout_error() -> None:
    offsets = Offsets()
    replies = offsets.list({T0: EARLIEST}, 500)
    (send,) = offsets.poll()
    broke = DisconnectedError("broke")
    offsets.fail(send, broke)
    offsets.poll(500)
    assert isinstance(replies.error, OttlaTimeoutError)
    assert replies.error.cause is broke


def test_a_topic_that_does_not_exist_is_named_at_the_deadline_and_a_bad_name_at_once() -> None:
    offsets = Offsets()
    offsets.cluster.tell(errors={"t": 3}, leaders={})
    replies = offsets.list({T0: EARLIEST}, 500)
    offsets.poll()
    offsets.poll(500)
    assert type(replies.error) is UnknownTopicOrPartitionError
    offsets.cluster.tell(errors={"t": 17}, leaders={})
    replies = offsets.list({T0: EARLIEST}, 1_000)
    offsets.poll()
    assert type(replies.error) is InvalidTopicError


def test_nothing_asked_is_answered_at_once() -> None:
    offsets = Offsets()
    assert offsets.list({}).value == {}


def test_a_request_that_cannot_be_made_ends_a_question_and_is_a_problem_of_a_reset() -> None:
    offsets = Offsets()
    replies = offsets.list({T0: EARLIEST})
    offsets.fail(offsets.one(Api.LIST_OFFSETS), UnsupportedApiError("too old"))
    assert isinstance(replies.error, UnsupportedApiError)
    offsets.subscription.assign([T0])
    offsets.fail(offsets.one(Api.LIST_OFFSETS), UnsupportedApiError("too old"))
    assert isinstance(offsets.subscription.partitions[T0].problem, UnsupportedApiError)
    assert offsets.poll(99) == []
    offsets.one(Api.LIST_OFFSETS, 100)


def test_a_reset_by_duration_asks_for_what_is_as_young() -> None:
    offsets = Offsets(reset_to=Ago(60_000))
    offsets.mono = 5_000
    offsets.subscription.assign([T0])
    send = offsets.one(Api.LIST_OFFSETS)
    assert send.message.topics[0].partitions[0].timestamp == offsets.now.wall - 60_000
    offsets.answer(send, listed((T0, 33, 0), timestamp=1))
    assert offsets.subscription.partitions[T0].fetch == 33


def test_a_reset_by_duration_goes_to_the_end_where_nothing_is_as_young() -> None:
    offsets = Offsets(reset_to=Ago(60_000))
    offsets.subscription.assign([T0])
    offsets.answer(offsets.one(Api.LIST_OFFSETS), listed((T0, -1, 0)))
    send = offsets.one(Api.LIST_OFFSETS, 100)
    assert send.message.topics[0].partitions[0].timestamp == LATEST
    offsets.answer(send, listed((T0, 44, 0)))
    assert offsets.subscription.partitions[T0].fetch == 44


def test_a_look_up_under_way_is_not_repeated_and_what_comes_meanwhile_gets_its_own() -> None:
    offsets = Offsets(store=True)
    assert offsets.store is not None
    offsets.subscription.set_partitions([T0])
    for mono in range(5):
        assert offsets.poll(mono) == []
    offsets.subscription.set_partitions([T0, T1])
    assert offsets.poll() == []
    (first, first_reply), (second, second_reply) = offsets.store.asked
    assert (first, second) == ({T0}, {T1})
    first_reply({T0: OffsetAndMetadata(7)}, None)
    assert offsets.poll() == []
    assert [offsets.phase(tp) for tp in (T0, T1)] == [Phase.FETCHING, Phase.INITIALIZING]
    second_reply({T1: None}, None)
    offsets.one(Api.LIST_OFFSETS)


def test_a_request_that_was_noted_as_sent_leaves_though_the_next_one_cannot_be_made() -> None:
    offsets = Offsets()
    offsets.subscription.assign([T0, T1])
    with unmade(list_offsets_request, "ListOffsetsRequest", 2), pytest.raises(OSError, match="Too many open files"):
        offsets.poll()
    assert {send.target for send in offsets.poll()} == {ToNode(1), ToNode(2)}
