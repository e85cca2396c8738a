"""Commits and look-ups of commits: order, retries, every row of the error tables, and auto-commit."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from ottla.client.effects import ToCoordinator
from ottla.client.groups.membership import MemberIdentity
from ottla.client.positions.commit import CommitManager
from ottla.client.positions.stores.kafka import KafkaOffsetStore
from ottla.errors import (
    CommitFailedError,
    CoordinatorLoadInProgressError,
    DisconnectedError,
    GroupAuthorizationFailedError,
    OffsetMetadataTooLargeError,
    OttlaError,
    OttlaTimeoutError,
    StaleMemberEpochError,
    UnknownTopicIdError,
    error_class,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_commit_request, offset_commit_response, offset_fetch_request, offset_fetch_response
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.unit.client.managers import (
    NO_MEMBER,
    NO_THROTTLE,
    T0,
    T1,
    TOPIC_ID,
    Asked,
    Cluster,
    FixedCoordinator,
    FixedMembership,
    Replies,
    backoff,
    config,
    unmade,
)

AT_5 = {T0: OffsetAndMetadata(5, "note", 2)}


class Commits(Asked):
    def __init__(self, **settings: Any) -> None:
        self.coordinator = FixedCoordinator()
        self.membership = FixedMembership()
        self.cluster = Cluster()
        self.read_in: dict[TopicPartition, uuid.UUID] = {}
        settings = {"auto_commit_interval_ms": 5_000, **settings}
        parsed = config(**settings)
        store = KafkaOffsetStore(
            parsed,
            self.coordinator,  # type: ignore[arg-type]
            self.membership,  # type: ignore[arg-type]
            self.cluster.manager,
            lambda *_: None,
        )
        manager = CommitManager(
            parsed,
            store,
            self.membership,  # type: ignore[arg-type]
            backoff(),
            lambda tp: self.read_in.get(tp),
        )
        super().__init__(manager)
        self.manager: CommitManager

    def commit(self, offsets: Any = AT_5, *, deadline: int | None = 1_000, retry: bool = True) -> Replies:
        replies = Replies()
        self.manager.commit(offsets, deadline, retry, replies)
        return replies

    def fetch(self, *partitions: TopicPartition, deadline: int | None = 1_000) -> Replies:
        replies = Replies()
        self.manager.fetch(frozenset(partitions), deadline, replies)
        return replies


def committed(*codes: tuple[TopicPartition, int]) -> Any:
    topics: dict[str, list[Any]] = {}
    for tp, code in codes:
        part = offset_commit_response.OffsetCommitResponsePartition(partition_index=tp.partition, error_code=ErrorCode(code))
        topics.setdefault(tp.topic, []).append(part)
    return offset_commit_response.OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            offset_commit_response.OffsetCommitResponseTopic(name=name, partitions=tuple(p)) for name, p in topics.items()
        ),
    )


def fetched(*rows: tuple[TopicPartition, int, int], error: int = 0, by_id: bool = False) -> Any:
    parts = tuple(
        offset_fetch_response.OffsetFetchResponsePartitions(
            partition_index=tp.partition,
            committed_offset=offset,
            committed_leader_epoch=2,
            metadata="m",
            error_code=ErrorCode(code),
        )
        for tp, offset, code in rows
    )
    named = {"topic_id": TOPIC_ID} if by_id else {"name": "t"}
    topic = offset_fetch_response.OffsetFetchResponseTopics(**named, partitions=parts)
    group = offset_fetch_response.OffsetFetchResponseGroup(group_id="g", topics=(topic,), error_code=ErrorCode(error))
    return offset_fetch_response.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=(group,))


@pytest.fixture
def commits() -> Commits:
    return Commits()


def test_a_commit_is_signed_and_names_everything(commits: Commits) -> None:
    replies = commits.commit()
    send = commits.one(Api.OFFSET_COMMIT)
    message = send.message
    assert send.target == ToCoordinator(1)
    assert (message.group_id, message.generation_id_or_member_epoch, message.member_id) == ("g", 7, "member")
    (topic,) = message.topics
    (part,) = topic.partitions
    assert (topic.name, topic.topic_id) == ("t", TOPIC_ID)
    assert (part.partition_index, part.committed_offset, part.committed_leader_epoch, part.committed_metadata) == (0, 5, 2, "note")
    commits.answer(send, committed((T0, ErrorCode.none)))
    assert replies.value == AT_5


@pytest.mark.parametrize("retry", [True, False])
def test_a_position_in_a_topic_that_was_deleted_is_not_committed_to_another_one_of_its_name(commits: Commits, retry: bool) -> None:
    commits.read_in = {T0: uuid.UUID(int=4), T1: TOPIC_ID}
    alone = commits.commit(retry=retry)
    both = commits.commit({**AT_5, T1: OffsetAndMetadata(6)}, retry=retry)
    commits.read_in = {T0: TOPIC_ID, T1: TOPIC_ID}  # it is read there by now
    send = commits.one(Api.OFFSET_COMMIT)
    assert isinstance(alone.error, UnknownTopicIdError)
    assert "deleted and recreated" in str(alone.error)
    assert [part.partition_index for part in send.message.topics[0].partitions] == [T1.partition]
    commits.answer(send, committed((T1, ErrorCode.none)))
    assert commits.poll(900) == []
    assert isinstance(both.error, UnknownTopicIdError)
    again = commits.commit()
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, ErrorCode.none)))
    assert again.value == AT_5


def test_a_commit_names_the_topic_that_was_read_while_no_topic_of_its_name_is_known(commits: Commits) -> None:
    commits.read_in = {T0: uuid.UUID(int=4)}
    commits.cluster.manager.current = replace(commits.cluster.manager.current, topics={})
    refused = commits.commit(retry=False)
    send = commits.one(Api.OFFSET_COMMIT)
    (topic,) = send.message.topics
    assert topic.topic_id == uuid.UUID(int=4), "by its name alone it would be the one that the broker knows already"
    part = offset_commit_response.OffsetCommitResponsePartition(partition_index=0, error_code=ErrorCode.unknown_topic_id)
    answered = offset_commit_response.OffsetCommitResponseTopic(topic_id=topic.topic_id, partitions=(part,))
    commits.answer(send, offset_commit_response.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=(answered,)))
    assert "committing t-0" in str(refused.error)


def test_nothing_leaves_while_the_coordinator_is_unknown(commits: Commits) -> None:
    commits.coordinator.node_id = None
    replies = commits.commit(deadline=1_000)
    assert commits.poll() == []
    assert commits.wake_at == 1_000
    commits.coordinator.node_id = 2
    assert commits.one(Api.OFFSET_COMMIT).target == ToCoordinator(2)
    assert replies.got == []


def test_commits_leave_in_their_order_and_several_at_once(commits: Commits) -> None:
    for offset in (1, 2, 3):
        commits.commit({T0: OffsetAndMetadata(offset)}, retry=False)
    assert [send.message.topics[0].partitions[0].committed_offset for send in commits.poll()] == [1, 2, 3]


def test_nothing_to_commit_is_done_at_once(commits: Commits) -> None:
    assert commits.commit({}).value == {}
    assert commits.poll() == []


@pytest.mark.parametrize(("code", "doubted"), [(3, False), (7, True), (14, False), (15, True), (16, True), (100, False)])
def test_a_passing_failure_is_tried_again_with_growing_pauses(commits: Commits, code: int, doubted: bool) -> None:
    replies = commits.commit(deadline=10_000)
    for pause in (100, 200, 400):
        commits.coordinator.node_id = 1
        commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, code)))
        assert (commits.coordinator.node_id is None) is doubted
        commits.coordinator.node_id = 1
        assert commits.poll(commits.mono + pause - 1) == []
        commits.mono += 1
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, ErrorCode.none)))
    assert replies.value == AT_5


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.offset_metadata_too_large,
        ErrorCode.invalid_commit_offset_size,
        ErrorCode.group_authorization_failed,
        ErrorCode.invalid_group_id,
        ErrorCode.unknown_server_error,
    ],
)
def test_a_failure_that_stays_is_given_as_it_is(commits: Commits, code: int) -> None:
    replies = commits.commit()
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, code)))
    assert type(replies.error) is error_class(code)
    assert "t-0" in str(replies.error)
    assert commits.poll(10_000) == []


@pytest.mark.parametrize(
    "code",
    [ErrorCode.illegal_generation, ErrorCode.unknown_member_id, ErrorCode.rebalance_in_progress, ErrorCode.fenced_instance_id],
)
def test_who_signed_is_the_business_of_the_membership(commits: Commits, code: int) -> None:
    replies = commits.commit()
    send = commits.one(Api.OFFSET_COMMIT)
    signed = commits.membership.identity()
    commits.membership.signs = NO_MEMBER
    commits.answer(send, committed((T0, code)))
    assert commits.membership.refusals == [(code, signed)]
    assert type(replies.error) is error_class(code)


def test_a_consumer_that_is_no_member_is_told_that_the_group_has_members(commits: Commits) -> None:
    commits.membership.signs = NO_MEMBER
    replies = commits.commit()
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, ErrorCode.unknown_member_id)))
    assert "a consumer that assigns partitions by hand needs a group_id of its own" in str(replies.error)


def test_the_first_failing_partition_decides_but_lacking_rights_are_named_together(commits: Commits) -> None:
    other = TopicPartition("u", 0)
    both = {T0: OffsetAndMetadata(1), other: OffsetAndMetadata(1)}
    replies = commits.commit(both)
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, 29), (other, 29)))
    assert "t, u" in str(replies.error)
    replies = commits.commit(both)
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, 29), (other, 12)))
    assert type(replies.error) is OffsetMetadataTooLargeError


@pytest.mark.parametrize("lost", [DisconnectedError("broken"), OttlaTimeoutError("late"), None], ids=["broken", "late", "code"])
def test_a_retry_does_not_set_back_a_later_commit_that_may_have_been_executed(commits: Commits, lost: OttlaError | None) -> None:
    """Seed 7272 of consumer groups: an automatic commit behind one that is retried; the connection broke after both."""
    first = commits.commit({T0: OffsetAndMetadata(27), T1: OffsetAndMetadata(4)}, deadline=10_000)
    later = commits.commit({T0: OffsetAndMetadata(46)}, deadline=10_000, retry=False)
    sends = commits.poll()
    for send in sends:
        if lost is not None:
            commits.fail(send, lost)
        else:
            commits.answer(send, committed((T0, ErrorCode.request_timed_out)))
    commits.coordinator.node_id = 1
    assert later.error is not None
    retry = commits.one(Api.OFFSET_COMMIT, 1_000)
    assert [(part.partition_index, part.committed_offset) for part in retry.message.topics[0].partitions] == [(0, 46), (1, 4)]
    commits.answer(retry, committed((T0, ErrorCode.none), (T1, ErrorCode.none)))
    assert first.value == {T0: OffsetAndMetadata(27), T1: OffsetAndMetadata(4)}


def test_a_retry_has_its_own_position_if_the_later_commit_was_refused(commits: Commits) -> None:
    commits.commit({T0: OffsetAndMetadata(27)}, deadline=10_000)
    commits.commit({T0: OffsetAndMetadata(46, "x" * 10_000)}, deadline=10_000, retry=False)
    first, later = commits.poll()
    commits.answer(later, committed((T0, ErrorCode.offset_metadata_too_large)))
    commits.fail(first, DisconnectedError("broken"))
    commits.coordinator.node_id = 1
    assert commits.one(Api.OFFSET_COMMIT, 1_000).message.topics[0].partitions[0].committed_offset == 27


def test_without_retry_there_is_one_attempt(commits: Commits) -> None:
    replies = commits.commit(retry=False)
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, ErrorCode.coordinator_load_in_progress)))
    assert replies.error.retriable
    assert commits.poll(10_000) == []


def test_the_deadline_ends_retries_and_names_the_last_reason(commits: Commits) -> None:
    replies = commits.commit(deadline=250)
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, ErrorCode.coordinator_load_in_progress)))
    commits.answer(commits.one(Api.OFFSET_COMMIT, 100), committed((T0, ErrorCode.coordinator_load_in_progress)))
    assert commits.poll(250) == []
    assert isinstance(replies.error, OttlaTimeoutError)
    assert "COORDINATOR_LOAD_IN_PROGRESS" in str(replies.error)


def test_a_call_fails_at_its_deadline_and_its_request_stays_in_flight(commits: Commits) -> None:
    replies, found = commits.commit(deadline=1_000), commits.fetch(T0, deadline=1_000)
    commit, look_up = commits.poll()
    assert commit.timeout == look_up.timeout == 30_000
    assert commits.wake_at == 1_000
    assert commits.poll(1_000) == []
    assert isinstance(replies.error, OttlaTimeoutError)
    assert isinstance(found.error, OttlaTimeoutError)
    assert "node 1 has not answered yet" in str(replies.error)
    assert commits.wake_at is None
    assert commits.coordinator.doubts == []
    later = commits.fetch(T0, deadline=9_000)
    assert commits.poll(1_500) == [], "it is being looked up"
    commits.answer(look_up, fetched((T0, 9, 0)))
    commits.answer(commit, committed((T0, ErrorCode.coordinator_load_in_progress)))
    assert commits.poll(9_000) == [], "no call waits for another attempt"
    assert len(replies.got) == len(found.got) == 1
    assert later.value == {T0: OffsetAndMetadata(9, "m", 2)}


def test_a_retry_has_the_current_generation(commits: Commits) -> None:
    commits.commit()
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, ErrorCode.coordinator_load_in_progress)))
    commits.membership.signs = commits.membership.identity()._replace(generation=8)
    assert commits.one(Api.OFFSET_COMMIT, 100).message.generation_id_or_member_epoch == 8


def test_who_may_not_commit_learns_it_without_a_request(commits: Commits) -> None:
    commits.membership.signs = CommitFailedError("not a member")
    assert isinstance(commits_error(commits), CommitFailedError)


def commits_error(commits: Commits) -> Any:
    replies = commits.commit()
    assert commits.poll() == []
    return replies.error


def test_a_silent_coordinator_is_doubted(commits: Commits) -> None:
    commits.commit()
    commits.fail(commits.one(Api.OFFSET_COMMIT), DisconnectedError("broke"))
    assert commits.coordinator.doubts == ["broke"]


def test_a_look_up_that_cannot_succeed_fails_all_waiting_calls(commits: Commits) -> None:
    commits.coordinator.node_id = None
    replies, found = commits.commit(), commits.fetch(T0)
    commits.poll()
    denied = GroupAuthorizationFailedError("group")
    commits.coordinator.observers[0](denied, commits.now)
    assert (replies.error, found.error) == (denied, denied)


def test_look_ups_give_positions_or_none(commits: Commits) -> None:
    replies = commits.fetch(T0, T1)
    send = commits.one(Api.OFFSET_FETCH)
    assert send.message.require_stable
    assert send.message.groups[0].topics[0].partition_indexes == (0, 1)
    commits.answer(send, fetched((T0, 9, 0), (T1, -1, 0), by_id=True))
    assert replies.value == {T0: OffsetAndMetadata(9, "m", 2), T1: None}


def test_a_look_up_knows_the_topic_of_its_response_though_the_metadata_has_lost_it(commits: Commits) -> None:
    """A topic without a leader is not in the next metadata. Without its name the position would be reset."""
    replies = commits.fetch(T0)
    send = commits.one(Api.OFFSET_FETCH)
    commits.cluster.tell(topic_id=uuid.UUID(int=9))
    commits.answer(send, fetched((T0, 5, 0), by_id=True))
    assert replies.value == {T0: OffsetAndMetadata(5, "m", 2)}


def test_a_partition_that_the_response_leaves_out_is_no_partition_without_a_commit(commits: Commits) -> None:
    replies = commits.fetch(T0, T1)
    commits.answer(commits.one(Api.OFFSET_FETCH), fetched((T0, 5, 0)))
    assert "the response does not contain t-1" in str(replies.error)


def test_the_same_look_up_is_made_once_for_all_who_ask(commits: Commits) -> None:
    first = commits.fetch(T0)
    send = commits.one(Api.OFFSET_FETCH)
    second = commits.fetch(T0)
    other = commits.fetch(T1)
    commits.one(Api.OFFSET_FETCH)
    commits.answer(send, fetched((T0, 9, 0)))
    assert first.value == second.value == {T0: OffsetAndMetadata(9, "m", 2)}
    assert other.got == []


@pytest.mark.parametrize(
    ("partition", "group", "doubted"),
    [(3, 0, False), (88, 0, False), (100, 0, False), (0, 14, False), (0, 15, True), (0, 16, True)],
)
def test_a_look_up_is_tried_again_after_what_passes(commits: Commits, partition: int, group: int, doubted: bool) -> None:
    replies = commits.fetch(T0, deadline=None)
    commits.answer(commits.one(Api.OFFSET_FETCH), fetched((T0, 9, partition), error=group))
    assert bool(commits.coordinator.doubts) is doubted
    commits.coordinator.node_id = 1
    assert commits.poll(99) == []
    commits.answer(commits.one(Api.OFFSET_FETCH, 100), fetched((T0, 9, 0)))
    assert replies.value


@pytest.mark.parametrize(("partition", "group"), [(29, 0), (0, 30), (0, 24)])
def test_a_look_up_ends_with_what_stays(commits: Commits, partition: int, group: int) -> None:
    replies = commits.fetch(T0)
    commits.answer(commits.one(Api.OFFSET_FETCH), fetched((T0, 9, partition), error=group))
    assert type(replies.error) is error_class(partition or group)
    assert commits.fetch(T0).got == []
    commits.one(Api.OFFSET_FETCH)


def test_auto_commit_comes_with_polls_and_at_its_interval(commits: Commits) -> None:
    commits.manager.polled(AT_5, commits.now)
    assert commits.poll(4_999) == []
    commits.manager.polled(AT_5, commits.now)
    assert commits.poll(9_000) == []
    commits.manager.polled(AT_5, commits.now)
    send = commits.one(Api.OFFSET_COMMIT)
    commits.mono = 20_000
    commits.manager.polled(AT_5, commits.now)
    assert commits.poll() == []
    commits.answer(send, committed((T0, ErrorCode.none)))
    commits.manager.polled(AT_5, commits.now)
    commits.one(Api.OFFSET_COMMIT)


def test_auto_commit_is_tried_again_soon_after_what_passes_and_later_after_what_stays(commits: Commits) -> None:
    commits.manager.polled(AT_5, commits.now)
    for code, pause in ((14, 100), (12, 5_000)):
        commits.mono += 5_000
        commits.manager.polled(AT_5, commits.now)
        commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, code)))
        start = commits.mono
        commits.mono = start + pause - 1
        commits.manager.polled(AT_5, commits.now)
        assert commits.poll() == []
        commits.mono = start + pause
        commits.manager.polled(AT_5, commits.now)
        commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, ErrorCode.none)))


def test_auto_commit_is_still_where_it_may_not_or_has_nothing(commits: Commits) -> None:
    commits.manager.polled(AT_5, commits.now)
    commits.mono = 5_000
    commits.manager.polled({}, commits.now)
    commits.membership.signs = CommitFailedError("no")
    commits.manager.polled(AT_5, commits.now)
    assert commits.poll() == []
    commits.membership.signs = NO_MEMBER
    commits.manager.polled(AT_5, commits.now)
    commits.one(Api.OFFSET_COMMIT)


def test_without_auto_commit_polls_commit_nothing() -> None:
    commits = Commits(enable_auto_commit=False)
    commits.manager.polled(AT_5, commits.now)
    commits.mono = 60_000
    commits.manager.polled(AT_5, commits.now)
    assert commits.poll() == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.rebalance_in_progress,
        ErrorCode.fenced_instance_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.stale_member_epoch,
    ],
)
def test_what_is_about_the_signature_is_for_the_membership_to_judge(commits: Commits, code: int) -> None:
    replies = commits.commit()
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, code)))
    assert commits.membership.refusals == [(code, commits.membership.signs)]
    assert type(replies.error) is error_class(code)


def test_a_commit_that_may_get_a_new_generation_is_retried_if_the_caller_insists(commits: Commits) -> None:
    commits.membership.may_retry = True
    once, insisting = commits.commit(retry=False), commits.commit()
    commits.answer(commits.poll()[0], committed((T0, ErrorCode.stale_member_epoch)))
    assert type(once.error) is StaleMemberEpochError
    commits.answer(commits.sent[-1], committed((T0, ErrorCode.stale_member_epoch)))
    commits.membership.signs = commits.membership.signs._replace(generation=8)  # type: ignore[union-attr]
    send = commits.one(Api.OFFSET_COMMIT, 100)
    assert send.message.generation_id_or_member_epoch == 8
    commits.answer(send, committed((T0, ErrorCode.none)))
    assert insisting.value == AT_5


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id])
def test_a_topic_that_is_gone_does_not_hold_a_revocation_up(commits: Commits, code: int) -> None:
    replies = Replies()
    commits.manager.commit(AT_5, 60_000, True, replies, revoking=True)
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, code)))
    assert type(replies.error) is error_class(code)


def test_look_ups_are_signed_by_who_is_a_member(commits: Commits) -> None:
    commits.fetch(T0)
    group = commits.one(Api.OFFSET_FETCH).message.groups[0]
    assert (group.member_id, group.member_epoch) == (None, -1)
    commits.membership.reads = MemberIdentity(8, "member")
    commits.fetch(T1)
    group = commits.one(Api.OFFSET_FETCH).message.groups[0]
    assert (group.member_id, group.member_epoch) == ("member", 8)


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.stale_member_epoch])
def test_a_look_up_is_retried_with_the_new_member_epoch(commits: Commits, code: int) -> None:
    commits.membership.reads = MemberIdentity(8, "member")
    replies = commits.fetch(T0, deadline=None)
    commits.answer(commits.one(Api.OFFSET_FETCH), fetched(error=code))
    commits.membership.reads = MemberIdentity(9, "member")
    send = commits.one(Api.OFFSET_FETCH, 100)
    assert send.message.groups[0].member_epoch == 9
    commits.answer(send, fetched((T0, 9, 0)))
    assert replies.value


def test_a_failure_of_several_partitions_is_one_failure(commits: Commits) -> None:
    replies = commits.commit({T0: OffsetAndMetadata(1), T1: OffsetAndMetadata(1)}, deadline=10_000)
    commits.answer(
        commits.one(Api.OFFSET_COMMIT),
        committed((T0, ErrorCode.coordinator_load_in_progress), (T1, ErrorCode.coordinator_load_in_progress)),
    )
    send = commits.one(Api.OFFSET_COMMIT, 100)
    commits.answer(send, committed((T0, ErrorCode.coordinator_load_in_progress), (T1, ErrorCode.none)))
    assert commits.poll(299) == []
    commits.answer(commits.one(Api.OFFSET_COMMIT, 300), committed((T0, ErrorCode.none), (T1, ErrorCode.none)))
    assert set(replies.value) == {T0, T1}


def test_all_that_is_on_its_way_to_a_coordinator_that_goes_is_answered_once(commits: Commits) -> None:
    replies = [commits.commit({T0: OffsetAndMetadata(offset)}, retry=False) for offset in range(50)]
    sends = commits.poll()
    assert len(sends) == 50
    for send in sends:
        commits.fail(send, DisconnectedError("broke"))
    assert [type(one.error) for one in replies] == [DisconnectedError] * 50
    assert commits.coordinator.doubts == ["broke"], "doubted once"
    assert commits.poll(10_000) == []


def offsets_of(send: Any) -> dict[int, int]:
    return {part.partition_index: part.committed_offset for topic in send.message.topics for part in topic.partitions}


def test_commits_that_fail_together_are_sent_again_in_their_order(commits: Commits) -> None:
    first, second = commits.commit(AT_5), commits.commit({T0: OffsetAndMetadata(6)})
    one, two = commits.poll()
    commits.answer(one, committed((T0, ErrorCode.coordinator_load_in_progress)))
    assert commits.poll(500) == [], "what becomes of the second has to be known first"
    commits.answer(two, committed((T0, ErrorCode.coordinator_load_in_progress)))
    again = commits.poll(999)
    assert [offsets_of(send) for send in again] == [{0: 5}, {0: 6}]
    for send in again:
        commits.answer(send, committed((T0, ErrorCode.none)))
    assert (first.value, second.value) == (AT_5, {T0: OffsetAndMetadata(6)})


def test_a_commit_that_is_to_be_sent_again_goes_before_those_that_were_asked_for_after_it(commits: Commits) -> None:
    commits.commit(AT_5)
    one = commits.one(Api.OFFSET_COMMIT)
    commits.answer(one, committed((T0, ErrorCode.not_coordinator)))
    commits.commit({T0: OffsetAndMetadata(6)}, deadline=10_000)
    assert commits.poll() == [], "there is no coordinator"
    commits.coordinator.node_id = 1
    assert [offsets_of(send) for send in commits.poll(100)] == [{0: 5}, {0: 6}]


def test_a_retried_commit_has_the_current_generation_and_omits_revoked_partitions(commits: Commits) -> None:
    kept, gone = commits.commit({T1: OffsetAndMetadata(1)}), commits.commit(AT_5)
    for send in commits.poll():
        commits.answer(
            send,
            committed((T0, ErrorCode.coordinator_load_in_progress))
            if 0 in offsets_of(send)
            else committed((T1, ErrorCode.coordinator_load_in_progress)),
        )
    commits.manager.gave_up([T0])
    later = commits.commit({T0: OffsetAndMetadata(6)})
    commits.membership.signs = MemberIdentity(8, "member", None)
    again, fresh = commits.poll(999)
    assert (offsets_of(again), again.message.generation_id_or_member_epoch) == ({1: 1}, 8)
    assert offsets_of(fresh) == {0: 6}, "what was asked for since is another holder's"
    assert isinstance(gone.error, CommitFailedError)
    assert "t-0" in str(gone.error)
    assert kept.got == later.got == []


def test_a_commit_is_signed_by_who_was_a_member_when_it_was_asked_for(commits: Commits) -> None:
    commits.commit()
    commits.membership.signs = CommitFailedError("on its way out")
    assert commits.one(Api.OFFSET_COMMIT).message.generation_id_or_member_epoch == 7
    assert commits.commit().error is commits.membership.signs


def test_what_is_committed_at_the_very_beginning_is_committed(commits: Commits) -> None:
    for offset in (0, 7):
        replies = commits.fetch(T0)
        commits.answer(commits.one(Api.OFFSET_FETCH), fetched((T0, offset, 0)))
        assert replies.value == {T0: OffsetAndMetadata(offset, "m", 2)}


def test_who_shares_a_look_up_waits_as_long_as_he_said(commits: Commits) -> None:
    commits.coordinator.node_id = None
    for_ever, long, short = commits.fetch(T0, deadline=None), commits.fetch(T0, deadline=1_000), commits.fetch(T0, deadline=100)
    commits.poll(99)
    assert for_ever.got == long.got == short.got == []
    commits.poll(500)
    assert isinstance(short.error, OttlaTimeoutError)
    assert for_ever.got == long.got == []
    commits.poll(1_000)
    assert isinstance(long.error, OttlaTimeoutError)
    commits.coordinator.node_id = 1
    commits.answer(commits.one(Api.OFFSET_FETCH, 2_000), fetched((T0, 9, 0)))
    assert for_ever.value == {T0: OffsetAndMetadata(9, "m", 2)}


def test_a_refusal_that_comes_too_late_for_one_is_tried_again_for_the_others(commits: Commits) -> None:
    long, short = commits.fetch(T0, deadline=1_000), commits.fetch(T0, deadline=100)
    send = commits.one(Api.OFFSET_FETCH)
    commits.mono = 100
    commits.answer(send, fetched((T0, -1, ErrorCode.coordinator_load_in_progress)))
    assert isinstance(short.error, OttlaTimeoutError)
    assert isinstance(short.error.__cause__, CoordinatorLoadInProgressError)
    commits.answer(commits.one(Api.OFFSET_FETCH, 999), fetched((T0, 9, 0)))
    assert long.value == {T0: OffsetAndMetadata(9, "m", 2)}


def test_a_commit_that_is_sent_again_takes_no_later_one_back(commits: Commits) -> None:
    both = {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(50)}
    first, second, third = commits.commit(AT_5), commits.commit(both), commits.commit({T0: OffsetAndMetadata(6)})
    sends = commits.poll()
    commits.fail(sends[0], DisconnectedError("gone"))
    commits.answer(sends[1], committed((T0, ErrorCode.coordinator_load_in_progress), (T1, ErrorCode.none)))
    commits.answer(sends[2], committed((T0, ErrorCode.none)))
    commits.coordinator.node_id = 1
    assert commits.poll(999) == [], "nothing of them is left to say"
    assert (first.value, second.value, third.value) == (AT_5, both, {T0: OffsetAndMetadata(6)})
    on_purpose = commits.commit(AT_5)
    commits.answer(commits.one(Api.OFFSET_COMMIT, 999), committed((T0, ErrorCode.none)))
    assert on_purpose.value == AT_5


def test_a_commit_that_was_noted_as_sent_leaves_though_the_next_request_cannot_be_made() -> None:
    commits = Commits()
    commits.commit()
    commits.fetch(T0)
    with unmade(offset_fetch_request, "OffsetFetchRequest", 1), pytest.raises(OSError, match="Too many open files"):
        commits.poll()
    assert [send.api for send in commits.poll()] == [Api.OFFSET_COMMIT, Api.OFFSET_FETCH]


def test_a_commit_that_could_not_be_made_is_made_later() -> None:
    commits = Commits()
    commits.commit()
    with unmade(offset_commit_request, "OffsetCommitRequest", 1), pytest.raises(OSError, match="Too many open files"):
        commits.poll()
    commits.one(Api.OFFSET_COMMIT)


class Breaking:
    """Raises whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is broken")


@pytest.mark.parametrize("code", [ErrorCode.illegal_generation, ErrorCode.not_coordinator])
def test_a_commit_whose_refusal_cannot_be_handled_ends_and_blocks_no_other(commits: Commits, code: int) -> None:
    earlier, broken = commits.commit(), commits.commit({T0: OffsetAndMetadata(6), T1: OffsetAndMetadata(7)})
    first, second = commits.poll()
    commits.answer(first, committed((T0, ErrorCode.coordinator_load_in_progress)))
    store = commits.manager._store
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_membership", Breaking())
        patch.setattr(store, "_coordinator", Breaking())
        with pytest.raises(RuntimeError, match="is broken"):
            commits.answer(second, committed((T0, code), (T1, ErrorCode.none)))
    assert "is broken" in str(broken.error)
    commits.answer(commits.one(Api.OFFSET_COMMIT, 100), committed((T0, ErrorCode.none)))
    assert earlier.value == AT_5
    assert commits.manager._order.left(1, {T1: OffsetAndMetadata(1)}) == {}, "the second one has committed it"


def test_a_look_up_whose_refusal_cannot_be_handled_ends(commits: Commits) -> None:
    replies = commits.fetch(T0)
    send = commits.one(Api.OFFSET_FETCH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits.manager._store, "_coordinator", Breaking())
        with pytest.raises(RuntimeError, match="is broken"):
            commits.answer(send, fetched(error=ErrorCode.not_coordinator))
    assert "is broken" in str(replies.error)
    again = commits.fetch(T0)
    commits.answer(commits.one(Api.OFFSET_FETCH), fetched((T0, 9, 0)))
    assert again.value == {T0: OffsetAndMetadata(9, "m", 2)}


def test_a_request_without_a_response_ends_though_the_coordinator_cannot_be_doubted(commits: Commits) -> None:
    replies, found = commits.commit(retry=False), commits.fetch(T0)
    commit, fetch = commits.poll()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits.manager._store, "_coordinator", Breaking())
        for send in (commit, fetch):
            with pytest.raises(RuntimeError, match="is broken"):
                commits.fail(send, DisconnectedError("gone"))
    assert isinstance(replies.error, DisconnectedError)
    commits.answer(commits.one(Api.OFFSET_FETCH, 100), fetched((T0, 9, 0)))
    assert found.value == {T0: OffsetAndMetadata(9, "m", 2)}


def test_a_retry_is_void_only_if_what_is_left_of_it_was_given_up(commits: Commits) -> None:
    both = {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)}
    replies = commits.commit(both)
    loading = committed((T0, ErrorCode.none), (T1, ErrorCode.coordinator_load_in_progress))
    commits.answer(commits.one(Api.OFFSET_COMMIT), loading)
    commits.manager.gave_up([T0])
    again = commits.one(Api.OFFSET_COMMIT, 100)
    assert offsets_of(again) == {1: 6}
    commits.answer(again, committed((T1, ErrorCode.none)))
    assert replies.value == both


def test_a_retry_of_what_was_given_up_says_so_though_the_topic_was_recreated_meanwhile(commits: Commits) -> None:
    commits.read_in = {T0: TOPIC_ID}
    replies = commits.commit()
    commits.answer(commits.one(Api.OFFSET_COMMIT), committed((T0, ErrorCode.unknown_topic_id)))
    commits.manager.gave_up([T0])
    commits.cluster.tell(topic_id=uuid.UUID(int=9))
    assert commits.poll(100) == []
    assert isinstance(replies.error, CommitFailedError)
    assert "t-0 was revoked" in str(replies.error)
