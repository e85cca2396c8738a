"""``Admin`` on Apache Kafka and on the embedded broker: the results are the same."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import confluent_kafka
import pytest

from ottla import Admin, Broker
from ottla.errors import OttlaError
from ottla.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from tests.interop.real_kafka import OwnKafka, free_port_pair

NAMES = (f"admin-{number}" for number in itertools.count())


@pytest.fixture(scope="module", params=["apache-kafka", "embedded"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("real_kafka")
        return
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=servers) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin) -> str:
    """A fresh topic of three partitions."""
    name = next(NAMES)
    admin.create_topics({name: 3})
    # The controller answers before the broker has made the logs: Kafka knows the topic for a moment without a folder for it.
    (node,) = admin.describe_cluster().nodes
    partitions = {TopicPartition(name, number) for number in range(3)}
    eventually(lambda: partitions <= {tp for place in admin.describe_log_dirs()[node.node_id].values() for tp in place.sizes}, True)
    return name


def produce(servers: str, tp: TopicPartition, *timestamps: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for timestamp in timestamps:
        producer.produce(tp.topic, b"value", partition=tp.partition, timestamp=timestamp)
    assert producer.flush(60) == 0


def test_the_cluster_names_itself_and_its_broker(admin: Admin, servers: str) -> None:
    cluster = admin.describe_cluster()
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == servers
    assert cluster.controller == node
    assert cluster.cluster_id


def test_topics_come_and_go(admin: Admin) -> None:
    one, two = next(NAMES), next(NAMES)
    admin.create_topics({one: 3, two: 1}, configs={"retention.ms": "12345"})
    described = admin.describe_topics([one, two])
    assert [len(topic.partitions) for topic in described.values()] == [3, 1]
    assert [part.partition for part in described[one].partitions] == [0, 1, 2]
    assert all(part.leader is not None for part in described[one].partitions)
    assert {one, two} <= admin.list_topics().keys()
    assert not any(name.startswith("__") for name in admin.list_topics())
    entry = admin.describe_configs("topic", one)["retention.ms"]
    assert (entry.value, entry.source) == ("12345", "topic")
    admin.delete_topics([one, two])
    assert not {one, two} & admin.list_topics().keys()


def test_a_topic_that_exists_is_said_so_and_the_other_is_made(admin: Admin, topic: str) -> None:
    other = next(NAMES)
    with pytest.raises(OttlaError, match=topic) as raised:
        admin.create_topics({topic: 1, other: 1})
    assert type(raised.value).__name__ == "TopicAlreadyExistsError"
    end = time.monotonic() + 60  # a refusal is not followed by a look whether the rest is visible yet
    while other not in admin.list_topics():
        assert time.monotonic() < end, f"{other} was not made"


@pytest.mark.parametrize("name", ["a b", ".", "x" * 250])
def test_a_name_that_cannot_be_is_refused(admin: Admin, name: str) -> None:
    with pytest.raises(OttlaError) as raised:
        admin.create_topics({name: 1})
    assert type(raised.value).__name__ == "InvalidTopicError"


def test_a_setting_that_is_none_is_refused(admin: Admin) -> None:
    with pytest.raises(OttlaError) as raised:
        admin.create_topics({next(NAMES): 1}, configs={"no.such.setting": "1"})
    assert type(raised.value).__name__ == "InvalidConfigError"


def test_only_validating_creates_nothing(admin: Admin) -> None:
    name = next(NAMES)
    admin.create_topics({name: 1}, validate_only=True)
    assert name not in admin.list_topics()


def test_what_is_not_there_is_said_so_at_once(admin: Admin) -> None:
    for call in (
        lambda: admin.describe_topics(["nowhere"]),
        lambda: admin.delete_topics(["nowhere"]),
        lambda: admin.list_offsets({TopicPartition("nowhere", 0): "latest"}),
    ):
        with pytest.raises(OttlaError, match="nowhere") as raised:
            call()
        assert type(raised.value).__name__ == "UnknownTopicOrPartitionError"


def test_the_broker_tells_its_configuration(admin: Admin) -> None:
    (node,) = admin.describe_cluster().nodes
    assert "num.partitions" in admin.describe_configs("broker", str(node.node_id))


def test_settings_are_changed_and_taken_back(admin: Admin, topic: str) -> None:
    admin.alter_configs("topic", topic, {"retention.ms": "5000", "cleanup.policy": "compact"})
    eventually(lambda: admin.describe_configs("topic", topic)["retention.ms"].value, "5000")
    admin.alter_configs("topic", topic, {"retention.ms": "6000"}, validate_only=True)
    admin.alter_configs("topic", topic, {"retention.ms": None})
    eventually(lambda: admin.describe_configs("topic", topic)["retention.ms"].source, "default")
    assert admin.describe_configs("topic", topic)["cleanup.policy"].value == "compact"
    with pytest.raises(OttlaError, match=r"retention\.ms") as raised:
        admin.alter_configs("topic", topic, {"retention.ms": "soon"})
    assert type(raised.value).__name__ == "InvalidConfigError"


def test_settings_of_brokers_and_groups(admin: Admin) -> None:
    (node,) = admin.describe_cluster().nodes
    broker = str(node.node_id)
    admin.alter_configs("broker", broker, {"log.cleaner.backoff.ms": "777"})
    eventually(lambda: admin.describe_configs("broker", broker)["log.cleaner.backoff.ms"].source, "dynamic broker")
    admin.alter_configs("broker", broker, {"log.cleaner.backoff.ms": None})
    eventually(lambda: admin.describe_configs("broker", broker)["log.cleaner.backoff.ms"].source, "default")
    admin.alter_configs("group", "admins", {"consumer.session.timeout.ms": "46000"})
    eventually(lambda: admin.describe_configs("group", "admins")["consumer.session.timeout.ms"].value, "46000")


def test_partitions_are_added(admin: Admin, topic: str) -> None:
    admin.create_partitions({topic: 5}, validate_only=True)
    admin.create_partitions({topic: 4})
    assert len(admin.describe_topics([topic])[topic].partitions) == 4
    with pytest.raises(OttlaError, match="already has 4") as raised:
        admin.create_partitions({topic: 4})
    assert type(raised.value).__name__ == "InvalidPartitionsError"


def test_the_logs_of_a_broker_lie_somewhere(admin: Admin, topic: str) -> None:
    (node,) = admin.describe_cluster().nodes
    (described,) = admin.describe_log_dirs()[node.node_id].values()
    assert described.error is None
    assert (described.total_bytes or 0) > 0
    assert described.sizes[TopicPartition(topic, 0)] == 0


def test_records_are_deleted(admin: Admin, servers: str, topic: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce(servers, first, 1_000, 2_000, 3_000)
    produce(servers, second, 1_000)
    assert admin.delete_records({first: 2, second: "latest"}) == {first: 2, second: 1}
    earliest = admin.list_offsets({first: "earliest"})[first]
    assert earliest is not None
    assert earliest.offset == 2
    with pytest.raises(
        OttlaError, match=rf'^the records of {topic}-0 before offset 9 .* beyond the end of the log; "latest"'
    ) as raised:
        admin.delete_records({first: 9})
    assert type(raised.value).__name__ == "OffsetOutOfRangeError"


def eventually(ask: Callable[[], object], expected: object) -> None:
    """What Kafka's controller has answered reaches its brokers a moment later."""
    deadline = time.monotonic() + 60
    while (found := ask()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == expected


def test_offsets_by_end_and_by_time(admin: Admin, servers: str, topic: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce(servers, first, 1_000, 2_000, 3_000)
    ends = admin.list_offsets({first: "earliest", second: "latest"})
    assert (ends[first].offset, ends[second].offset) == (0, 0)
    latest = admin.list_offsets({first: "latest"})[first]
    assert latest is not None
    assert latest.offset == 3
    assert admin.list_offsets({first: 1_500}) == {first: OffsetAndTimestamp(1, 2_000, 0)}
    assert admin.list_offsets({first: 3_001}) == {first: None}


def test_the_offsets_of_a_group_without_members(admin: Admin, topic: str) -> None:
    group, first, second = next(NAMES), TopicPartition(topic, 0), TopicPartition(topic, 2)
    assert admin.group_offsets(group) == {}
    admin.alter_group_offsets(group, {first: 5, second: OffsetAndMetadata(7, "why", 0)})
    assert admin.group_offsets(group) == {first: OffsetAndMetadata(5), second: OffsetAndMetadata(7, "why", 0)}
    third = TopicPartition(topic, 1)
    assert admin.group_offsets(group, [second, third]) == {second: OffsetAndMetadata(7, "why", 0)}
    assert admin.group_offsets(group, [third]) == admin.group_offsets(group, []) == {}
    listed = next(item for item in admin.list_groups() if item.group_id == group)
    assert (listed.state, listed.group_type.lower()) == ("Empty", "classic")
    admin.delete_groups([group])
    assert group not in {item.group_id for item in admin.list_groups()}
    assert admin.group_offsets(group) == {}


@pytest.mark.parametrize("kind", ["embedded", pytest.param("apache-kafka", marks=pytest.mark.slow)])
def test_an_offset_expires_at_a_time_of_its_own(request: pytest.FixtureRequest, kind: str) -> None:
    with expiring_servers(request, kind) as servers, Admin(bootstrap_servers=servers) as admin:
        admin.create_topics({"t": 2})
        short, usual = TopicPartition("t", 0), TopicPartition("t", 1)
        admin.alter_group_offsets("g", {short: 5}, retention=1.5)
        admin.alter_group_offsets("g", {usual: 7})
        assert admin.group_offsets("g").keys() == {short, usual}
        eventually(lambda: [*admin.group_offsets("g")], [usual])


@contextmanager
def expiring_servers(request: pytest.FixtureRequest, kind: str) -> Iterator[str]:
    """A broker that looks for expired offsets ten times a second."""
    interval = ("offsets.retention.check.interval.ms", 100)
    if kind == "embedded":
        with Broker(settings=dict([interval])) as broker:
            yield broker.bootstrap_servers
    else:
        request.getfixturevalue("kafka_tool")
        node = OwnKafka(free_port_pair(), "=".join(map(str, interval)))
        try:
            yield node.address
        finally:
            node.stop()


def test_a_consumer_group_is_described_like_a_classic_one(admin: Admin, servers: str, topic: str) -> None:
    group = f"of-{topic}"
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer", "client.id": "reader"}
    )
    try:
        consumer.subscribe([topic])
        partitions = tuple(TopicPartition(topic, each.partition) for each in admin.describe_topics([topic])[topic].partitions)
        deadline = time.monotonic() + 60
        while len(consumer.assignment()) < len(partitions):
            consumer.poll(0.1)
            assert time.monotonic() < deadline
        described = admin.describe_groups([group])[group]
        assert (described.group_type, described.state, described.assignor) == ("consumer", "Stable", "uniform")
        (member,) = described.members
        assert (member.client_id, member.partitions) == ("reader", partitions)
    finally:
        consumer.close()
    left = admin.describe_groups([group])[group]
    assert (left.group_type, left.state, left.members) == ("consumer", "Empty", ())


def test_a_group_that_is_not_there(admin: Admin) -> None:
    for call in (lambda: admin.describe_groups(["no-group"]), lambda: admin.delete_groups(["no-group"])):
        with pytest.raises(OttlaError, match="no-group") as raised:
            call()
        assert type(raised.value).__name__ == "GroupIdNotFoundError"


def test_a_group_with_a_member(admin: Admin, servers: str, topic: str) -> None:
    group = next(NAMES)
    produce(servers, TopicPartition(topic, 0), 1_000)
    settings = {"bootstrap.servers": servers, "group.id": group, "client.id": "peer", "auto.offset.reset": "earliest"}
    with closing(confluent_kafka.Consumer(settings)) as member:
        member.subscribe([topic])
        assert member.poll(20) is not None
        described = admin.describe_groups([group])[group]
        assert (described.state, described.protocol_type, described.assignor) == ("Stable", "consumer", "range")
        (only,) = described.members
        assert only.client_id == "peer"
        assert only.host.endswith("127.0.0.1")
        assert only.partitions == tuple(TopicPartition(topic, index) for index in range(3))
        with pytest.raises(OttlaError) as refused:
            admin.delete_groups([group])
        assert type(refused.value).__name__ == "NonEmptyGroupError"
        with pytest.raises(OttlaError) as fenced:
            admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
        assert type(fenced.value).__name__ == "UnknownMemberIdError"
