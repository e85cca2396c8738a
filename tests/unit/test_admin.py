"""The calls of an Admin under a virtual clock: the broker of each request, retries, and the errors at the deadline."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from ottla import Admin
from ottla.client.admin import calls
from ottla.client.admin.groups import describe_groups
from ottla.client.admin.log_dirs import describe_log_dirs
from ottla.client.admin.manager import AdminManager, BeginCall, CallEnded
from ottla.config import AdminConfig
from ottla.errors import (
    BrokerIdNotRegisteredError,
    ConcurrentAccessError,
    ConfigError,
    ConnectionFailedError,
    CoordinatorNotAvailableError,
    ForkedError,
    GroupIdNotFoundError,
    IllegalStateError,
    KafkaStorageError,
    OttlaError,
    OttlaTimeoutError,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.consumer_protocol import Assignment, encode_assignment
from ottla.protocol.messages import (
    consumer_group_describe_response,
    create_topics_response,
    delete_topics_response,
    describe_groups_response,
    describe_log_dirs_response,
    find_coordinator_response,
    list_groups_response,
    list_offsets_response,
    metadata_response,
    offset_commit_response,
    offset_fetch_response,
)
from ottla.types import IsolationLevel, Now, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from tests.simulation.network import ClientOnNetwork, NoAnswer

ZERO = timedelta(0)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Cluster:
    """Two brokers that answer from tables. ``errors`` come first: a code for each request of an API, 0 for none."""

    def __init__(self) -> None:
        self.topics: dict[str, list[int]] = {"t": [1, 2]}
        """Topic -> the leader of each partition."""
        self.first_leader = 1
        """The leader of the partitions of a new topic."""
        self.coordinator = 2
        self.committed: dict[TopicPartition, int] = {}
        self.errors: dict[Api, list[ErrorCode]] = {}
        self.lost: set[Api] = set()
        """APIs of which one request is executed but not answered."""
        self.asked: list[tuple[int, Api]] = []

    def behind(self, node: int) -> Callable[[Any, Any], Any]:
        def answer(header: Any, message: Any) -> Any:
            if header.api is not Api.METADATA:
                self.asked.append((node, header.api))
            code = self.errors[header.api].pop(0) if self.errors.get(header.api) else ErrorCode.none
            response = getattr(self, header.api.name.lower())(node, message, code)
            if header.api in self.lost:
                self.lost.discard(header.api)
                raise NoAnswer
            return response

        return answer

    def metadata(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = metadata_response
        names = list(self.topics) if message.topics is None else [topic.name for topic in message.topics]
        return m.MetadataResponse(
            throttle_time=ZERO,
            brokers=tuple(m.MetadataResponseBroker(node_id=n, host=f"10.0.0.{n}", port=9092) for n in (1, 2)),
            cluster_id="cluster",
            controller_id=1,
            topics=tuple(self._topic(name) for name in names),
            error_code=code,
        )

    def _topic(self, name: str) -> Any:
        m = metadata_response
        known = name in self.topics
        partitions = tuple(
            m.MetadataResponsePartition(error_code=ErrorCode.none, partition_index=index, leader_id=leader, leader_epoch=3)
            for index, leader in enumerate(self.topics.get(name, []))
        )
        return m.MetadataResponseTopic(
            error_code=ErrorCode.none if known else ErrorCode.unknown_topic_or_partition,
            name=name,
            topic_id=uuid.UUID(int=1) if known else None,
            is_internal=name.startswith("__"),
            partitions=partitions,
        )

    def consumer_group_describe(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = consumer_group_describe_response
        (group_id,) = message.group_ids
        assigned = m.Assignment(topic_partitions=(m.TopicPartitions(topic_id=None, topic_name="t", partitions=(1, 0)),))
        member = m.Member(
            member_id="m-2", member_epoch=3, client_id="c", client_host="/10.0.0.9", assignment=assigned, target_assignment=assigned
        )
        found = group_id == "kip-848"
        group = m.DescribedGroup(
            error_code=ErrorCode.none if found else ErrorCode.group_id_not_found,
            error_message=None if found else f"Group {group_id} is not a consumer group." if group_id == "share" else "not found",
            group_id=group_id,
            group_state="Stable" if found else "",
            group_epoch=3,
            assignment_epoch=3,
            assignor_name="uniform",
            members=(member,) if found else (),
        )
        return m.ConsumerGroupDescribeResponse(throttle_time=ZERO, groups=(group,))

    def describe_log_dirs(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = describe_log_dirs_response
        parts = tuple(
            m.DescribeLogDirsPartition(partition_index=index, partition_size=10 * node + future, offset_lag=0, is_future_key=future)
            for index, leader in enumerate(self.topics["t"])
            for future in (False, True)
            if leader == node
        )
        here = m.DescribeLogDirsResult(
            error_code=ErrorCode.none, log_dir="/data", topics=(m.DescribeLogDirsTopic(name="t", partitions=parts),), total_bytes=99
        )
        gone = m.DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir="/gone", topics=())
        return m.DescribeLogDirsResponse(throttle_time=ZERO, error_code=code, results=(here, gone))

    def create_topics(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = create_topics_response
        results = []
        for topic in message.topics:
            each = code or (ErrorCode.topic_already_exists if topic.name in self.topics else ErrorCode.none)
            if not each and not message.validate_only:
                self.topics[topic.name] = [self.first_leader] * topic.num_partitions
            results.append(
                m.CreatableTopicResult(name=topic.name, topic_id=None, error_code=each, error_message=None, configs=None)
            )
        return m.CreateTopicsResponse(throttle_time=ZERO, topics=tuple(results))

    def delete_topics(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = delete_topics_response
        results = []
        for topic in message.topics:
            gone = self.topics.pop(topic.name, None) if not code else None
            each = code or (ErrorCode.none if gone else ErrorCode.unknown_topic_or_partition)
            results.append(m.DeletableTopicResult(name=topic.name, topic_id=None, error_code=each))
        return m.DeleteTopicsResponse(throttle_time=ZERO, responses=tuple(results))

    def find_coordinator(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = find_coordinator_response
        found = tuple(
            m.Coordinator(
                key=key, node_id=self.coordinator, host=f"10.0.0.{self.coordinator}", port=9092, error_code=code, error_message=None
            )
            for key in message.coordinator_keys
        )
        return m.FindCoordinatorResponse(throttle_time=ZERO, coordinators=found)

    def list_groups(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = list_groups_response
        group = m.ListedGroup(
            group_id=f"g{3 - node}", protocol_type="consumer", group_state="Stable", group_type="classic", is_central=node == 1
        )
        return m.ListGroupsResponse(throttle_time=ZERO, error_code=code, groups=(group,))

    def describe_groups(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = describe_groups_response
        member = m.DescribedGroupMember(
            member_id="m-1",
            client_id="c",
            client_host="/10.0.0.9",
            member_metadata=b"",
            member_assignment=encode_assignment(Assignment((T1, T0))),
        )
        (group_id,) = message.groups
        group = m.DescribedGroup(
            error_code=ErrorCode.group_id_not_found if group_id in ("kip-848", "neither", "share") else code,
            group_id=group_id,
            group_state="Stable" if group_id in ("g", "central") else "Dead",
            protocol_type="consumer",
            protocol_data="range",
            members=(member,),
            is_central=group_id == "central",
        )
        return m.DescribeGroupsResponse(throttle_time=ZERO, groups=(group,))

    def offset_fetch(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = offset_fetch_response
        partitions = tuple(
            m.OffsetFetchResponsePartitions(
                partition_index=tp.partition, committed_offset=offset, metadata="", error_code=ErrorCode.none
            )
            for tp, offset in self.committed.items()
        )
        (asked,) = message.groups
        group = m.OffsetFetchResponseGroup(
            group_id=asked.group_id, topics=(m.OffsetFetchResponseTopics(name="t", partitions=partitions),), error_code=code
        )
        return m.OffsetFetchResponse(throttle_time=ZERO, groups=(group,))

    def offset_commit(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = offset_commit_response
        topics = []
        for topic in message.topics:
            for part in topic.partitions:
                if not code:
                    self.committed[TopicPartition(topic.name, part.partition_index)] = part.committed_offset
            results = tuple(
                m.OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code) for part in topic.partitions
            )
            topics.append(m.OffsetCommitResponseTopic(name=topic.name, partitions=results))
        return m.OffsetCommitResponse(throttle_time=ZERO, topics=tuple(topics))

    def list_offsets(self, node: int, message: Any, code: ErrorCode) -> Any:
        m = list_offsets_response
        topics = []
        for topic in message.topics:
            assert all(self.topics[topic.name][part.partition_index] == node for part in topic.partitions), "not the leader"
            results = tuple(
                m.ListOffsetsPartitionResponse(
                    partition_index=part.partition_index,
                    error_code=code,
                    timestamp=part.timestamp,
                    offset={-2: 0, -1: 100}.get(part.timestamp, -1 if part.timestamp > 1_000 else 50),
                    leader_epoch=3,
                )
                for part in topic.partitions
            )
            topics.append(m.ListOffsetsTopicResponse(name=topic.name, partitions=results))
        return m.ListOffsetsResponse(throttle_time=ZERO, topics=tuple(topics))


class Operator(ClientOnNetwork):
    """An operator's calls on a cluster of two brokers."""

    def __init__(self) -> None:
        self.config = AdminConfig.parse(bootstrap_servers="10.0.0.1:9092", request_timeout=5)
        super().__init__(self.config)
        self.manager = AdminManager(self.config, self.core.random, self.core.notify, self.core.learn_node)
        self.core.add_manager(self.manager)
        self.core.register(BeginCall, self.manager.begin)
        self.cluster = Cluster()
        for node in (1, 2):
            self.network.peer(f"10.0.0.{node}:9092", answer=self.cluster.behind(node))

    def begin(self, call: calls.Call[Any], timeout: int = 10_000, waited: int = 0) -> None:
        self.core.handle_command(
            BeginCall(1, "the call", call, self.network.mono + timeout, timeout + waited, waited), self.network.now
        )

    def outcome(self) -> CallEnded | None:
        ended = [item for item in self.core.take_notifications() if isinstance(item, CallEnded)]
        assert len(ended) <= 1
        return ended[0] if ended else None

    def run(self, call: calls.Call[Any], timeout: int = 10_000) -> Any:
        """Run a call; return its result or raise its error. The clock advances only as far as the call needs."""
        self.begin(call, timeout)
        deadline = self.network.mono + timeout
        while True:
            wake_at = self.network.settle()
            ended = self.outcome()
            if ended is not None:
                if ended.error is not None:
                    raise ended.error
                return ended.value
            assert wake_at is not None
            assert wake_at <= deadline, "no outcome was reported by the deadline"
            self.network.clock.move_to(wake_at)


@pytest.fixture
def world() -> Operator:
    return Operator()


def create(topics: dict[str, int], validate_only: bool = False) -> calls.Call[None]:
    return calls.create_topics(topics, -1, {}, validate_only, 5_000)


def test_topics_are_created_at_the_controller(world: Operator) -> None:
    world.run(create({"new": 3}))
    assert world.cluster.topics["new"] == [1, 1, 1]
    assert world.cluster.asked == [(1, Api.CREATE_TOPICS)]


def test_creating_waits_for_leaders(world: Operator) -> None:
    world.cluster.first_leader = -1
    world.begin(create({"new": 2}))
    world.network.advance(1_000)
    assert world.outcome() is None
    world.cluster.topics["new"] = [1, 2]
    world.network.advance(1_200)
    ended = world.outcome()
    assert ended is not None
    assert ended.error is None
    assert world.cluster.asked == [(1, Api.CREATE_TOPICS)]


def test_only_validating_creates_nothing(world: Operator) -> None:
    world.run(create({"new": 3}, validate_only=True))
    assert "new" not in world.cluster.topics


def test_the_error_names_the_topics_that_failed_and_the_others_are_created(world: Operator) -> None:
    with pytest.raises(OttlaError, match="topic 't'") as raised:
        world.run(create({"t": 1, "new": 1}))
    assert type(raised.value).__name__ == "TopicAlreadyExistsError"
    assert "new" in world.cluster.topics


def test_a_retry_after_a_lost_response_does_not_fail(world: Operator) -> None:
    world.cluster.lost = {Api.CREATE_TOPICS}
    world.run(create({"new": 1}))
    world.cluster.lost = {Api.DELETE_TOPICS}
    world.run(calls.delete_topics(["new"], 5_000))
    assert world.cluster.asked.count((1, Api.CREATE_TOPICS)) == 2
    assert world.cluster.asked.count((1, Api.DELETE_TOPICS)) == 2


def test_retriable_errors_are_tried_again_with_a_pause(world: Operator) -> None:
    world.cluster.errors[Api.CREATE_TOPICS] = [ErrorCode.not_controller, ErrorCode.not_controller]
    began = world.network.mono
    world.run(create({"new": 1}))
    assert world.cluster.asked == [(1, Api.CREATE_TOPICS)] * 3
    assert world.network.mono - began >= 80 + 160


def test_calls_that_name_an_unknown_topic_fail_without_retries(world: Operator) -> None:
    for call in (
        calls.delete_topics(["no"], 5_000),
        calls.describe_topics(["no"]),
        calls.list_offsets({TopicPartition("no", 0): -1}, IsolationLevel(0)),
    ):
        with pytest.raises(OttlaError, match="topic 'no'") as raised:
            world.run(call)
        assert type(raised.value).__name__ == "UnknownTopicOrPartitionError"
    assert world.network.mono == 1_000


def test_topics_are_listed_and_described(world: Operator) -> None:
    world.cluster.topics["__internal"] = [1]
    assert list(world.run(calls.list_topics(False))) == ["t"]
    assert list(world.run(calls.list_topics(True))) == ["__internal", "t"]
    (topic,) = world.run(calls.describe_topics(["t"])).values()
    assert [(part.partition, part.leader, part.leader_epoch) for part in topic.partitions] == [(0, 1, 3), (1, 2, 3)]


def test_offsets_are_requested_from_each_leader(world: Operator) -> None:
    found = world.run(calls.list_offsets({T0: -2, T1: -1}, IsolationLevel.READ_COMMITTED))
    assert found == {T0: OffsetAndTimestamp(0, -2, 3), T1: OffsetAndTimestamp(100, -1, 3)}
    assert sorted(world.cluster.asked) == [(1, Api.LIST_OFFSETS), (2, Api.LIST_OFFSETS)]
    assert world.run(calls.list_offsets({T0: 2_000, T1: 7}, IsolationLevel(0))) == {T0: None, T1: OffsetAndTimestamp(50, 7, 3)}


def test_a_leader_that_moved_is_looked_up_again(world: Operator) -> None:
    world.cluster.errors[Api.LIST_OFFSETS] = [ErrorCode.not_leader_or_follower]
    assert world.run(calls.list_offsets({T0: -1}, IsolationLevel(0)))[T0].offset == 100


def test_a_partition_that_does_not_exist(world: Operator) -> None:
    with pytest.raises(OttlaError, match="topic 't' has no partition 9"):
        world.run(calls.list_offsets({TopicPartition("t", 9): -1}, IsolationLevel(0)))


def test_log_directories_are_requested_from_each_broker(world: Operator) -> None:
    found = world.run(describe_log_dirs(None))
    assert {node: dirs["/data"].sizes for node, dirs in found.items()} == {1: {T0: 10}, 2: {T1: 20}}
    here, gone = found[2]["/data"], found[2]["/gone"]
    assert (here.path, here.error, here.total_bytes, here.usable_bytes) == ("/data", None, 99, None)
    assert isinstance(gone.error, KafkaStorageError)
    assert list(world.run(describe_log_dirs([2]))) == [2]
    with pytest.raises(BrokerIdNotRegisteredError, match="there is no broker 7, only 1, 2"):
        world.run(describe_log_dirs([7]))


def test_groups_of_all_brokers_are_listed(world: Operator) -> None:
    assert [(group.group_id, group.group_type) for group in world.run(calls.list_groups())] == [
        ("g1", "classic"),
        ("g2", "central"),
    ]


def test_a_group_is_described_by_its_coordinator(world: Operator) -> None:
    group = world.run(describe_groups(["g"]))["g"]
    assert (group.state, group.assignor, group.coordinator.node_id) == ("Stable", "range", 2)
    assert [(member.member_id, member.host, member.partitions) for member in group.members] == [("m-1", "/10.0.0.9", (T0, T1))]
    assert (2, Api.DESCRIBE_GROUPS) in world.cluster.asked
    assert group.group_type == "classic"
    central = world.run(describe_groups(["central"]))["central"]
    assert (central.group_type, central.protocol_type) == ("central", "consumer")


def test_a_group_of_the_consumer_protocol_is_described_by_a_second_request(world: Operator) -> None:
    group = world.run(describe_groups(["kip-848"]))["kip-848"]
    assert (group.group_type, group.assignor, group.coordinator.node_id) == ("consumer", "uniform", 2)
    assert [(member.member_id, member.partitions) for member in group.members] == [("m-2", (T0, T1))]
    assert [api for _, api in world.cluster.asked][-2:] == [Api.DESCRIBE_GROUPS, Api.CONSUMER_GROUP_DESCRIBE]
    with pytest.raises(GroupIdNotFoundError, match="there is no group 'neither'"):
        world.run(describe_groups(["neither"]))
    with pytest.raises(GroupIdNotFoundError, match="group 'share' is neither a classic group nor a consumer group"):
        world.run(describe_groups(["share"]))


def test_a_group_that_does_not_exist(world: Operator) -> None:
    with pytest.raises(OttlaError, match="there is no group 'other'"):
        world.run(describe_groups(["other"]))


def test_a_coordinator_that_moved_is_found_again(world: Operator) -> None:
    world.cluster.errors[Api.OFFSET_COMMIT] = [ErrorCode.not_coordinator]
    world.cluster.errors[Api.FIND_COORDINATOR] = [ErrorCode.coordinator_not_available]
    world.run(calls.alter_group_offsets("g", {T0: OffsetAndMetadata(5)}))
    assert world.cluster.committed == {T0: 5}
    assert world.run(calls.group_offsets("g")) == {T0: OffsetAndMetadata(5)}


def test_a_refused_commit_names_the_partition(world: Operator) -> None:
    world.cluster.errors[Api.OFFSET_COMMIT] = [ErrorCode.unknown_member_id]
    with pytest.raises(OttlaError, match="the offset of t-0 of group 'g'") as raised:
        world.run(calls.alter_group_offsets("g", {T0: OffsetAndMetadata(5)}))
    assert type(raised.value).__name__ == "UnknownMemberIdError"


def test_the_timeout_while_a_broker_refuses(world: Operator) -> None:
    world.cluster.errors[Api.FIND_COORDINATOR] = [ErrorCode.coordinator_not_available] * 1_000
    began = world.network.mono
    with pytest.raises(OttlaTimeoutError, match=r"the call did not finish within 2 s: .*COORDINATOR_NOT_AVAILABLE") as raised:
        world.run(calls.group_offsets("g"), timeout=2_000)
    assert isinstance(raised.value.cause, CoordinatorNotAvailableError)
    assert world.network.mono - began == 2_000


@pytest.mark.parametrize(
    ("waited", "said"),
    [
        (100, "did not finish within 2.1 s: "),
        (8_000, "did not finish within 10 s, of which it waited 8 s for calls of other threads: "),
    ],
)
def test_the_error_of_a_call_that_waited_for_its_turn_names_the_whole_timeout(world: Operator, waited: int, said: str) -> None:
    world.cluster.errors[Api.FIND_COORDINATOR] = [ErrorCode.coordinator_not_available] * 1_000
    world.begin(calls.group_offsets("g"), 2_000, waited)
    while (ended := world.outcome()) is None:
        wake_at = world.network.settle()
        assert wake_at is not None
        world.network.clock.move_to(wake_at)
    assert said in str(ended.error)


def test_the_timeout_without_responses(world: Operator) -> None:
    for peer in world.network.peers.values():
        peer.mode = "mute"
    with pytest.raises(ConnectionFailedError, match="no broker could be reached within 2 s: ") as raised:
        world.run(calls.list_topics(False), timeout=2_000)
    assert "no answer to ApiVersions" in raised.value.attempts["10.0.0.1:9092"]


def test_a_call_ends_at_its_deadline_even_if_the_network_thread_starts_it_late(world: Operator) -> None:
    for peer in world.network.peers.values():
        peer.mode = "mute"
    deadline = world.network.mono + 2_000
    command = BeginCall(1, "the call", calls.list_topics(False), deadline, 2_000)
    world.network.clock.move_to(world.network.mono + 1_500)
    world.core.handle_command(command, world.network.now)
    wake_at = world.network.settle()
    while (ended := world.outcome()) is None:
        assert wake_at is not None
        world.network.clock.move_to(wake_at)
        wake_at = world.network.settle()
    assert world.network.mono == deadline
    assert "no broker could be reached within 2 s: " in str(ended.error)


def test_a_call_with_timeout_0_can_succeed(world: Operator) -> None:
    assert list(world.run(calls.list_topics(False), timeout=0)) == ["t"]


def test_an_exception_in_a_call_ends_only_that_call(world: Operator) -> None:
    def broken() -> calls.CallAttempt[Any]:
        yield ()
        raise ZeroDivisionError

    with pytest.raises(OttlaError, match="the call failed: ZeroDivisionError"):
        world.run(broken)
    assert list(world.run(calls.list_topics(False))) == ["t"]


# -- the public class -----------------------------------------------------------------------------------------------------


def test_the_constructor_opens_nothing_and_closing_twice_is_harmless() -> None:
    admin = Admin(bootstrap_servers="nowhere.invalid:9092")
    assert repr(admin) == "<Admin nowhere.invalid:9092>"
    admin.close()
    admin.close()
    with pytest.raises(IllegalStateError, match="the Admin is closed"):
        admin.list_topics()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda admin: admin.create_topics({"t": 0}), r"topics\['t'\] must be a whole number from 1"),
        (lambda admin: admin.describe_configs("cluster", "x"), "kind must be one of 'topic', 'broker', 'group', not 'cluster'"),
        (lambda admin: admin.alter_configs("cluster", "x", {"a": "b"}), "kind must be one of"),
        (lambda admin: admin.delete_records({T0: -1}), r"offsets\[t-0\] is negative: -1"),
        (lambda admin: admin.list_offsets({T0: -1}), r"times\[t-0\] is negative .or 'earliest' or 'latest'"),
        (lambda admin: admin.alter_group_offsets("g", {T0: -1}), r"offsets\[t-0\] is negative: -1"),
    ],
)
def test_invalid_arguments_raise_before_any_request(call: Callable[[Admin], Any], why: str) -> None:
    with Admin(bootstrap_servers="nowhere.invalid:9092") as admin, pytest.raises(ConfigError, match=why):
        call(admin)


def test_a_call_ends_at_its_timeout_even_if_the_network_thread_hangs() -> None:
    with Admin(bootstrap_servers="127.0.0.1:1") as admin:
        with pytest.raises(ConnectionFailedError):
            admin.list_topics(timeout=0.5)
        stuck, go_on = threading.Event(), threading.Event()

        class Hang:
            """A command during which the thread hangs."""

        def hang(command: Hang, now: Now) -> None:
            stuck.set()
            go_on.wait(60)

        thread = admin._thread
        assert thread is not None
        thread._core.register(Hang, hang)
        thread.submit(Hang())
        assert stuck.wait(60)
        begun = time.monotonic()
        with pytest.raises(OttlaTimeoutError, match="network thread did not report why"):
            admin.list_topics(timeout=0)
        assert time.monotonic() - begun < 4, "it took five seconds"
        go_on.set()
        with pytest.raises(ConnectionFailedError):
            admin.list_topics(timeout=0.5)


def test_a_signal_handler_cannot_call_an_admin_that_it_interrupts() -> None:
    raised: list[ConcurrentAccessError] = []

    def handler(*_: object) -> None:
        try:
            admin.list_topics(timeout=60)
        except ConcurrentAccessError as error:
            raised.append(error)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        silent = socket.create_server(("127.0.0.1", 0))
        with silent, Admin(bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}") as admin:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(ConnectionFailedError):
                admin.list_topics(timeout=1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "another call of the same thread" in str(raised[0])


def test_the_timeout_of_a_call_includes_the_wait_for_another_thread_s_call() -> None:
    def interrupted() -> None:
        with pytest.raises(OttlaError):
            admin.list_topics(timeout=60)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        with Admin(bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}") as admin:
            first = threading.Thread(target=interrupted)
            first.start()
            silent.accept()
            begun = time.monotonic()
            with pytest.raises(OttlaTimeoutError, match=r"did not start within 0\.1 s: a call of another thread") as raised:
                admin.list_topics(timeout=0.1)
            assert raised.value.hint == "use an Admin for each thread"
            assert time.monotonic() - begun < 30
        first.join(60)
        assert not first.is_alive()


def test_an_interrupted_wait_for_a_turn_wakes_the_next_thread() -> None:
    def call() -> None:
        with suppress(OttlaError, KeyboardInterrupt):
            admin.list_topics(timeout=300)

    with socket.create_server(("127.0.0.1", 0)) as silent, Admin(bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}") as admin:
        silent.settimeout(30)
        admin._running_call = (0, object())  # a call of another thread is running
        threads = [threading.Thread(target=call) for _ in range(2)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(admin._condition._waiters) < number:  # type: ignore[attr-defined]
                time.sleep(0.01)
        # The first thread gets this exception as soon as it is notified. A signal would arrive at that moment only by chance.
        interrupt = ctypes.py_object(KeyboardInterrupt)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threads[0].ident or 0), interrupt) == 1
        with admin._condition:
            admin._running_call = None
            admin._condition.notify()
        try:
            silent.accept()[0].close()  # a connection of the second thread's call
        finally:
            with admin._condition:
                admin._condition.notify_all()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_garbage_collected_admin_stops_its_thread() -> None:
    before = set(threading.enumerate())  # an Admin of an earlier test may still be ending
    admin = Admin(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(ConnectionFailedError):
        admin.list_topics(timeout=0.5)
    (thread,) = (thread for thread in set(threading.enumerate()) - before if thread.name == "ottla-admin")
    gone = weakref.ref(admin)
    del admin
    assert gone() is None, "nothing else refers to it, so it does not wait for the garbage collector"
    thread.join(60)
    assert not thread.is_alive()


def test_a_call_in_a_forked_child_raises() -> None:
    with Admin(bootstrap_servers="127.0.0.1:1") as admin:
        with pytest.raises(ConnectionFailedError):
            admin.list_topics(timeout=0.5)
        child = os.fork()
        if not child:
            try:
                admin.list_topics(timeout=0.05)
            except ForkedError as error:
                os._exit(0 if error.hint else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
