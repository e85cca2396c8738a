"""Topics and logs as administrators see and change them. The answers are those of Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.topics import INTERNAL_TOPICS
from ottla.protocol import ErrorCode, duration
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    alter_partition_reassignments_request,
    alter_replica_log_dirs_request,
    create_partitions_request,
    create_topics_request,
    delete_topics_request,
    describe_log_dirs_request,
    describe_quorum_request,
    describe_topic_partitions_request,
    elect_leaders_request,
    list_partition_reassignments_request,
    offset_for_leader_epoch_request,
)
from ottla.simulation.requests import IN_TIME
from tests.simulation.broker import CoreUnderTest
from tests.simulation.requests import fetch_message
from tests.unit.broker.harness import batch
from tests.unit.broker.requests import NO_WAIT, create, delete_records, fetched, produce


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = CoreUnderTest(tmp_path)
    create(core, "orders", 2)
    yield core
    core.close()


def widen(broker: CoreUnderTest, *wanted: tuple[str, int, tuple[tuple[int, ...], ...] | None], validate_only: bool = False) -> Any:
    topics = tuple(
        create_partitions_request.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if placed is None
            else tuple(create_partitions_request.CreatePartitionsAssignment(broker_ids=ids) for ids in placed),
        )
        for name, count, placed in wanted
    )
    message = create_partitions_request.CreatePartitionsRequest(topics=topics, timeout=IN_TIME, validate_only=validate_only)
    return [result.error_code for result in broker.ask(Api.CREATE_PARTITIONS, message).results]


@pytest.mark.parametrize("milliseconds", [0, -1, -(2**31)])
def test_what_leaves_no_time_is_not_done(tmp_path: Path, milliseconds: int) -> None:
    """Seen with Kafka 4.3.1: each topic is REQUEST_TIMED_OUT, and nothing has changed."""
    broker, timeout = CoreUnderTest(tmp_path), duration(milliseconds)
    create(broker, "orders", 2)
    new = create_topics_request.CreatableTopic(name="new", num_partitions=1, replication_factor=1, assignments=(), configs=())
    gone = delete_topics_request.DeleteTopicState(name="orders", topic_id=None)
    wider = create_partitions_request.CreatePartitionsTopic(name="orders", count=3, assignments=None)
    answers = [
        *broker.ask(Api.CREATE_TOPICS, create_topics_request.CreateTopicsRequest(topics=(new,), timeout=timeout)).topics,
        *broker.ask(Api.DELETE_TOPICS, delete_topics_request.DeleteTopicsRequest(topics=(gone,), timeout=timeout)).responses,
        *broker.ask(
            Api.CREATE_PARTITIONS,
            create_partitions_request.CreatePartitionsRequest(topics=(wider,), timeout=timeout, validate_only=False),
        ).results,
    ]
    assert [answer.error_code for answer in answers] == [ErrorCode.request_timed_out] * 3
    assert [(topic.name, topic.partition_count) for topic in broker.core.catalog.topics] == [("orders", 2)]


def test_partitions_are_added_for_good(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 2)
    assert widen(broker, ("orders", 4, None), validate_only=True) == [ErrorCode.none]
    assert broker.core.catalog.topics.partition_count("orders") == 2
    assert widen(broker, ("orders", 4, ((1,), (1,)))) == [ErrorCode.none]
    assert produce(broker, batch(), partition=3).error_code is ErrorCode.none
    broker.close()
    again = CoreUnderTest(tmp_path)
    assert again.core.catalog.topics.partition_count("orders") == 4
    assert again.core.catalog.log("orders", 3).end_offset == 1
    again.close()


@pytest.mark.parametrize("topic", INTERNAL_TOPICS)
def test_the_topics_of_the_coordinators_keep_their_partitions(broker: CoreUnderTest, topic: str) -> None:
    """After the next start a group would be looked for in another partition, and its committed offsets would be lost."""
    create(broker, topic, -1)
    for validate_only in (True, False):
        assert widen(broker, (topic, 99, None), validate_only=validate_only) == [ErrorCode.invalid_request]
    assert broker.core.catalog.topics.partition_count(topic) == 50


def creating(topic: str, **wanted: Any) -> create_topics_request.CreatableTopic:
    fields = {"num_partitions": 1, "replication_factor": -1, "assignments": (), "configs": ()}
    return create_topics_request.CreatableTopic(name=topic, **{**fields, **wanted})


@pytest.mark.parametrize("topic", INTERNAL_TOPICS)
@pytest.mark.parametrize(
    ("wanted", "warns"),
    [
        ({"num_partitions": 3}, True),
        ({"num_partitions": 3, "replication_factor": 1}, True),
        (
            {
                "num_partitions": -1,
                "assignments": (create_topics_request.CreatableReplicaAssignment(partition_index=0, broker_ids=(1,)),),
            },
            True,
        ),
        ({"num_partitions": 50}, False),
        ({"num_partitions": -1}, False),
    ],
)
def test_the_topics_of_the_coordinators_are_created_as_the_settings_say(
    broker: CoreUnderTest, caplog: pytest.LogCaptureFixture, topic: str, wanted: dict[str, Any], warns: bool
) -> None:
    """Kafka 4.3.1 creates them as requested. With 3 partitions it then served 5 of 8 groups and no transactional producer."""
    for validate_only in (True, False):
        message = create_topics_request.CreateTopicsRequest(topics=(creating(topic, **wanted),), validate_only=validate_only)
        (created,) = broker.ask(Api.CREATE_TOPICS, message).topics
        assert (created.error_code, created.num_partitions) == (ErrorCode.none, 50)
    assert broker.core.catalog.topics.partition_count(topic) == 50
    lines = [record.getMessage() for record in caplog.records]
    told = [
        line for line in lines if line.startswith(f"{topic} was created with 50 partitions, as the broker's settings say, not ")
    ]
    assert bool(told) is warns
    assert len(told) == len(lines)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"replication_factor": 3}, ErrorCode.invalid_replication_factor),
        ({"num_partitions": 0}, ErrorCode.invalid_partitions),
    ],
)
def test_the_topics_of_the_coordinators_are_refused_as_others_are(
    broker: CoreUnderTest, wanted: dict[str, Any], code: ErrorCode
) -> None:
    message = create_topics_request.CreateTopicsRequest(topics=(creating(INTERNAL_TOPICS[0], **wanted),))
    (refused,) = broker.ask(Api.CREATE_TOPICS, message).topics
    assert refused.error_code is code
    assert broker.core.catalog.topics.get(INTERNAL_TOPICS[0]) is None


@pytest.mark.parametrize("topic", INTERNAL_TOPICS)
def test_a_policy_under_which_the_coordinators_state_expires_is_warned_of(
    broker: CoreUnderTest, caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    """Kafka 4.3.1 accepts it without a word."""
    created = create(broker, topic, -1, cleanup_policy="compact,delete")
    assert created.error_code is ErrorCode.none
    assert f"{topic} has cleanup.policy=compact,delete: its records expire" in caplog.text


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (("nowhere", 3, None), ErrorCode.unknown_topic_or_partition),
        (("orders", 2, None), ErrorCode.invalid_partitions),
        (("orders", 1, None), ErrorCode.invalid_partitions),
        (("orders", -1, None), ErrorCode.invalid_partitions),
        (("orders", 20_000, None), ErrorCode.policy_violation),
        (("orders", 4, ((1,),)), ErrorCode.invalid_replica_assignment),
        (("orders", 3, ((9,),)), ErrorCode.invalid_replica_assignment),
        (("orders", 3, ((1, 1),)), ErrorCode.invalid_replica_assignment),
        (("orders", 3, ((),)), ErrorCode.invalid_replica_assignment),
    ],
)
def test_partitions_that_cannot_be_added(broker: CoreUnderTest, wanted: Any, code: ErrorCode) -> None:
    assert widen(broker, wanted) == [code]
    assert broker.core.catalog.topics.partition_count("orders") == 2


def test_a_topic_named_twice_gets_no_partitions(broker: CoreUnderTest) -> None:
    assert widen(broker, ("orders", 3, None), ("orders", 4, None)) == [ErrorCode.invalid_request]


def test_records_are_deleted_and_stay_deleted_after_a_kill(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 1)
    for _ in range(5):
        produce(broker, batch())
    assert delete_records(broker, 3) == (ErrorCode.none, 3)
    assert delete_records(broker, 1) == (ErrorCode.none, 3), "a log never begins earlier again"
    assert fetched(broker.ask(Api.FETCH, fetch_message(2), version=12)).error_code is ErrorCode.offset_out_of_range
    assert fetched(broker.ask(Api.FETCH, fetch_message(3), version=12)).error_code is ErrorCode.none
    broker.kill()
    again = CoreUnderTest(tmp_path)
    assert again.core.catalog.log("orders", 0).start_offset == 3
    assert delete_records(again, -1) == (ErrorCode.none, 5)
    assert produce(again, batch()).base_offset == 5
    again.close()


def test_records_that_cannot_be_deleted(broker: CoreUnderTest) -> None:
    create(broker, "compacted", cleanup_policy="compact")
    assert delete_records(broker, -1) == (ErrorCode.none, 0)
    assert delete_records(broker, 5) == (ErrorCode.offset_out_of_range, -1)
    assert delete_records(broker, -2) == (ErrorCode.offset_out_of_range, -1)
    assert delete_records(broker, 0, "compacted") == (ErrorCode.policy_violation, -1)
    assert delete_records(broker, 0, "nowhere") == (ErrorCode.unknown_topic_or_partition, -1)
    assert delete_records(broker, 0, "orders", 7) == (ErrorCode.unknown_topic_or_partition, -1)


@pytest.mark.parametrize(
    ("partition", "current", "epoch", "answer"),
    [
        (0, -1, 0, (ErrorCode.none, 0, 3)),
        (0, 0, 0, (ErrorCode.none, 0, 3)),
        (0, 5, 0, (ErrorCode.unknown_leader_epoch, -1, -1)),
        (0, -1, 9, (ErrorCode.none, -1, -1)),
        (0, -1, -1, (ErrorCode.none, -1, -1)),
        (9, -1, 0, (ErrorCode.unknown_topic_or_partition, -1, -1)),
    ],
)
def test_where_a_leader_epoch_ends(
    broker: CoreUnderTest, partition: int, current: int, epoch: int, answer: tuple[ErrorCode, int, int]
) -> None:
    for _ in range(3):
        produce(broker, batch())
    wanted = offset_for_leader_epoch_request.OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    topic = offset_for_leader_epoch_request.OffsetForLeaderTopic(topic="orders", partitions=(wanted,))
    message = offset_for_leader_epoch_request.OffsetForLeaderEpochRequest(topics=(topic,))
    ((result,),) = (one.partitions for one in broker.ask(Api.OFFSET_FOR_LEADER_EPOCH, message).topics)
    assert (result.error_code, result.leader_epoch, result.end_offset) == answer


def describe(broker: CoreUnderTest, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    message = describe_topic_partitions_request.DescribeTopicPartitionsRequest(
        topics=tuple(describe_topic_partitions_request.TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else describe_topic_partitions_request.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    answer = broker.ask(Api.DESCRIBE_TOPIC_PARTITIONS, message)
    topics = [(one.name, int(one.error_code), [p.partition_index for p in one.partitions]) for one in answer.topics]
    following = answer.next_cursor
    return topics, None if following is None else (following.topic_name, following.partition_index)


def test_partitions_are_described_page_by_page(broker: CoreUnderTest) -> None:
    create(broker, "bills", 3)
    assert describe(broker) == ([("bills", 0, [0, 1, 2]), ("orders", 0, [0, 1])], None)
    assert describe(broker, "orders", "nowhere") == ([("nowhere", 3, []), ("orders", 0, [0, 1])], None)
    assert describe(broker, limit=2) == ([("bills", 0, [0, 1])], ("bills", 2))
    assert describe(broker, limit=2, cursor=("bills", 2)) == ([("bills", 0, [2]), ("orders", 0, [0])], ("orders", 1))
    assert describe(broker, limit=2, cursor=("orders", 1)) == ([("orders", 0, [1])], None)
    assert describe(broker, "orders", limit=0) == ([("orders", 0, [0])], ("orders", 1))
    assert describe(broker, "orders", cursor=("bills", 0)) == ([("orders", 42, [])], None)
    assert describe(broker, "orders", cursor=("orders", -1)) == ([("orders", 42, [])], None)


def test_the_data_directory_is_described(broker: CoreUnderTest, tmp_path: Path) -> None:
    def sizes(*topics: tuple[str, tuple[int, ...]] | None) -> Any:
        wanted = (
            None
            if topics == (None,)
            else tuple(describe_log_dirs_request.DescribableLogDirTopic(topic=one[0], partitions=one[1]) for one in topics if one)
        )
        (result,) = broker.ask(Api.DESCRIBE_LOG_DIRS, describe_log_dirs_request.DescribeLogDirsRequest(topics=wanted)).results
        assert result.log_dir == str(tmp_path)
        assert result.total_bytes > result.usable_bytes > 0
        return {(topic.name, one.partition_index): one.partition_size for topic in result.topics for one in topic.partitions}

    produce(broker, batch())
    size = (tmp_path / "orders-0" / f"{0:020d}.log").stat().st_size
    assert sizes(None) == {("orders", 0): size, ("orders", 1): 0}
    assert sizes(("orders", (0, 9)), ("nowhere", (0,))) == {("orders", 0): size}
    assert sizes() == {}


def test_nothing_is_ever_reassigned(broker: CoreUnderTest) -> None:
    message = list_partition_reassignments_request.ListPartitionReassignmentsRequest(topics=None)
    answer = broker.ask(Api.LIST_PARTITION_REASSIGNMENTS, message)
    assert (answer.error_code, answer.topics) == (ErrorCode.none, ())


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ((1,), ErrorCode.none),
        (None, ErrorCode.no_reassignment_in_progress),
        ((), ErrorCode.invalid_replica_assignment),
        ((77,), ErrorCode.invalid_replica_assignment),
        ((1, 1), ErrorCode.invalid_replica_assignment),
    ],
)
def test_a_partition_can_be_given_to_the_broker_that_has_it(
    broker: CoreUnderTest, replicas: tuple[int, ...] | None, code: ErrorCode
) -> None:
    def given(topic: str, *partitions: int) -> list[ErrorCode]:
        wanted = tuple(
            alter_partition_reassignments_request.ReassignablePartition(partition_index=one, replicas=replicas)
            for one in partitions
        )
        topics = (alter_partition_reassignments_request.ReassignableTopic(name=topic, partitions=wanted),)
        message = alter_partition_reassignments_request.AlterPartitionReassignmentsRequest(timeout=NO_WAIT, topics=topics)
        answer = broker.ask(Api.ALTER_PARTITION_REASSIGNMENTS, message)
        assert answer.error_code is ErrorCode.none
        (result,) = answer.responses
        return [one.error_code for one in result.partitions]

    assert given("orders", 0, 2, 1) == [code, ErrorCode.unknown_topic_or_partition, code]
    assert given("nowhere", 0) == [ErrorCode.unknown_topic_or_partition]


def test_partitions_stay_in_the_one_data_directory(broker: CoreUnderTest, tmp_path: Path) -> None:
    def moved(*dirs: tuple[str, str, tuple[int, ...]]) -> dict[tuple[str, int], ErrorCode]:
        wanted = tuple(
            alter_replica_log_dirs_request.AlterReplicaLogDir(
                path=path, topics=(alter_replica_log_dirs_request.AlterReplicaLogDirTopic(name=name, partitions=partitions),)
            )
            for path, name, partitions in dirs
        )
        answer = broker.ask(Api.ALTER_REPLICA_LOG_DIRS, alter_replica_log_dirs_request.AlterReplicaLogDirsRequest(dirs=wanted))
        return {(topic.topic_name, one.partition_index): one.error_code for topic in answer.results for one in topic.partitions}

    here, unknown = str(tmp_path), ErrorCode.unknown_topic_or_partition
    assert moved((here, "orders", (0, 2)), (here, "nowhere", (0,))) == {
        ("orders", 0): ErrorCode.none,
        ("orders", 2): unknown,
        ("nowhere", 0): unknown,
    }
    assert moved(("/elsewhere", "orders", (0, 2))) == dict.fromkeys([("orders", 0), ("orders", 2)], ErrorCode.log_dir_not_found)
    assert moved(("/elsewhere", "orders", (0,)), (here, "orders", (0,))) == {("orders", 0): ErrorCode.none}


def test_no_partition_needs_another_leader(broker: CoreUnderTest) -> None:
    def elected(kind: int, *topics: tuple[str, tuple[int, ...]]) -> Any:
        asked = tuple(elect_leaders_request.TopicPartitions(topic=name, partitions=partitions) for name, partitions in topics)
        message = elect_leaders_request.ElectLeadersRequest(election_type=kind, topic_partitions=asked or None, timeout=NO_WAIT)
        answer = broker.ask(Api.ELECT_LEADERS, message)
        return answer.error_code, [
            (result.topic, [one.error_code for one in result.partition_result]) for result in answer.replica_election_results
        ]

    unneeded, unknown = ErrorCode.election_not_needed, ErrorCode.unknown_topic_or_partition
    for kind in (0, 1):
        assert elected(kind, ("orders", (0, 1, 2)), ("nowhere", (0,))) == (
            ErrorCode.none,
            [("orders", [unneeded, unneeded, unknown]), ("nowhere", [unknown])],
        )
        assert elected(kind) == (ErrorCode.none, [("orders", [])])
    assert elected(2, ("orders", (0,))) == (ErrorCode.invalid_request, [("orders", [ErrorCode.invalid_request])])


def test_the_broker_is_a_quorum_of_one(broker: CoreUnderTest) -> None:
    def quorum(*topics: tuple[str, tuple[int, ...]]) -> Any:
        asked = tuple(
            describe_quorum_request.TopicData(
                topic_name=name,
                partitions=tuple(describe_quorum_request.PartitionData(partition_index=one) for one in partitions),
            )
            for name, partitions in topics
        )
        answer = broker.ask(Api.DESCRIBE_QUORUM, describe_quorum_request.DescribeQuorumRequest(topics=asked))
        assert answer.error_code is ErrorCode.none
        return answer

    answer = quorum(("__cluster_metadata", (0,)))
    ((partition,),) = [topic.partitions for topic in answer.topics]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.none, 1)
    assert [voter.replica_id for voter in partition.current_voters] == [node.node_id for node in answer.nodes] == [1]
    create(broker, "more", 1)
    after = quorum(("__cluster_metadata", (0,))).topics[0].partitions[0]
    assert after.high_watermark == after.current_voters[0].log_end_offset > partition.high_watermark
    for odd in ([("orders", (0,))], [("__cluster_metadata", (1,))], [("__cluster_metadata", (0,)), ("orders", (0,))]):
        refused = quorum(*odd)
        assert {one.error_code for topic in refused.topics for one in topic.partitions} == {ErrorCode.unknown_topic_or_partition}
        assert refused.nodes == ()
    assert quorum().topics == ()
