"""Ottla's clients on Apache Kafka before 4.0: they work as with today's version, and errors name what a version does not support.

Owns the capabilities of each version since 1.0. Must not know the versions of requests behind them: these are in the table of
``ottla.protocol.apis``. The tested versions are the last before a change or the first after it: 1.0 has no fetch sessions and no
leader epochs, 2.1 no static members; 2.4 is the first in which a broker chooses the number of replicas; 2.8 is the last that writes
old record formats, and the last tested one with ZooKeeper; 3.3 is the first with KRaft for production; 3.9 is the last before 4.0.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from ottla import Admin, AsyncConsumer, Consumer, OffsetAndMetadata, Record, TopicPartition
from ottla.errors import NoOffsetForPartitionError, OttlaError, UnsupportedApiError
from tests.end_to_end.programs import ottla
from tests.interop.other_clients import Row, create_topic, produce_confluent
from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, OwnKafka, free_port_pair, run_tool

pytestmark = pytest.mark.interop

VERSIONS = ["1.0.2", "2.1.1", "2.4.1", "2.8.2", "3.3.2", "3.9.1"]
NOW = 1_700_000_000_000
ROWS: list[Row] = [(index % 3, b"k%d" % index, b"v%d" % index, NOW + index, (("h", b"%d" % index),)) for index in range(300)]
PATIENCE = 120.0
"""Seconds: a machine that is busy is no reason to fail."""
_numbers = count()


class Old(NamedTuple):
    """A node of an older version."""

    address: str
    version: tuple[int, ...]

    def since(self, *version: int) -> bool:
        """Whether it is as new as that."""
        return self.version >= version


@pytest.fixture(scope="module", params=VERSIONS)
def old(request: pytest.FixtureRequest, kafka_tool: KafkaTool) -> Iterator[Old]:
    version = request.param
    run_tool("fetch", version=version, timeout=FETCH_TIMEOUT)
    node = OwnKafka(free_port_pair(), "log.retention.ms=-1", version=version)  # the records are stamped with times long ago
    try:
        yield Old(node.address, tuple(map(int, version.split("."))))
    finally:
        node.stop()


@pytest.fixture
def topic(old: Old) -> str:
    """300 records in three partitions."""
    name = new_topic(old)
    produce_confluent(old.address, name, ROWS)
    return name


def new_topic(old: Old, partitions: int = 3, **config: str) -> str:
    name = f"old-{next(_numbers)}"
    create_topic(old.address, name, partitions, **config)
    return name


def read_from(old: Old, topic: str, wanted: int) -> list[Record]:
    """What three partitions hold, by timestamp."""
    found: list[Record] = []
    until = time.monotonic() + PATIENCE
    with consumer(old) as reader:
        reader.assign([TopicPartition(topic, number) for number in range(3)])
        while len(found) < wanted:
            assert time.monotonic() < until, f"{len(found)} of {wanted}: {reader.health()}"
            found += reader.poll(1)
    return sorted(found, key=lambda record: record.timestamp)


def consumer(old: Old, **settings: Any) -> Consumer:
    return Consumer(bootstrap_servers=old.address, **{"auto_offset_reset": "earliest", "client_id": "ours", **settings})


def values(readers: list[Consumer], wanted: int) -> list[bytes | None]:
    """What all of them read, in order, until it is as much as is ``wanted``."""
    found: list[bytes | None] = []
    until = time.monotonic() + PATIENCE
    while len(found) < wanted:
        assert time.monotonic() < until, f"{len(found)} of {wanted}: {[reader.health() for reader in readers]}"
        for reader in readers:
            found += [record.value for record in reader.poll(0.1)]
    return sorted(found, key=lambda value: (value is not None, value))


def eventually(holds: Callable[[], bool], readers: list[Consumer]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until
        for reader in readers:
            reader.poll(0.1)


ALL = sorted(row[2] for row in ROWS if row[2] is not None)


def test_auto_is_classic_and_one_line_says_why(old: Old, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ottla"), consumer(old, group_id=f"g-{topic}") as reader:
        reader.subscribe([topic])
        assert values([reader], len(ROWS)) == ALL
        reader.commit()
        assert reader.health().protocol == "classic"
    (line,) = [record.getMessage() for record in caplog.records if "group.protocol=auto chose" in record.getMessage()]
    why = "group.version of the cluster is 0" if old.since(3, 7) else "the broker does not serve CONSUMER_GROUP_HEARTBEAT"
    assert f"chose classic: {why}" in line


def test_the_consumer_protocol_is_refused_in_so_many_words(old: Old, topic: str) -> None:
    with consumer(old, group_id=f"g-{topic}", group_protocol="consumer") as reader:
        reader.subscribe([topic])
        with pytest.raises(OttlaError, match=r"does not offer the consumer protocol"):
            values([reader], 1)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_come_and_go(old: Old, topic: str, assignor: str) -> None:
    def member() -> Consumer:
        reader = consumer(old, group_id=f"g-{topic}", partition_assignment_strategy=assignor, heartbeat_interval_ms=300)
        reader.subscribe([topic])
        return reader

    with member() as first:
        assert values([first], len(ROWS)) == ALL
        first.commit()
        with member() as second:
            eventually(
                lambda: len(second.assignment()) in (1, 2) and len(first.assignment() | second.assignment()) == 3, [first, second]
            )
            produce_confluent(old.address, topic, ROWS)
            assert values([first, second], len(ROWS)) == ALL
            second.commit()
            first.commit()
        eventually(lambda: len(first.assignment()) == 3, [first])
        tps = first.assignment()
        assert [first.committed(sorted(tps))[tp].offset for tp in sorted(tps)] == [200, 200, 200]


def test_a_static_member_comes_back_to_what_it_had(old: Old, topic: str) -> None:
    def member() -> Consumer:
        reader = consumer(old, group_id=f"g-{topic}", group_instance_id="one")
        reader.subscribe([topic])
        return reader

    with member() as reader:
        if not old.since(2, 3):
            with pytest.raises(UnsupportedApiError, match="leave group_instance_id out"):
                values([reader], 1)
            return
        assert values([reader], len(ROWS)) == ALL
        reader.commit()
        epoch = reader.group_metadata().generation_id
    with member() as reader:
        eventually(lambda: len(reader.assignment()) == 3, [reader])
        # From 2.4 on the leader that comes back disturbs no one, whatever else the versions do.
        assert reader.group_metadata().generation_id in (epoch, epoch + 1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_as_they_were_sent(old: Old, codec: str) -> None:
    if codec == "zstd" and not old.since(2, 1):
        return  # no producer can write it there
    name = new_topic(old)
    produce_confluent(old.address, name, ROWS, compression_type=codec)
    found = read_from(old, name, len(ROWS))
    assert [(one.partition, one.key, one.value, one.timestamp, one.headers) for one in found] == ROWS


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4"])
def test_messages_of_format_1_come_as_they_were_sent(old: Old, codec: str) -> None:
    """A broker rewrites what comes to the format that its topic is set to; since 3.0 that setting means nothing."""
    name = new_topic(old, message_format_version="0.10.2", compression_type=codec)
    rows = [(*row[:4], ()) for row in ROWS]
    produce_confluent(old.address, name, rows)
    found = read_from(old, name, len(ROWS))
    assert [(one.partition, one.key, one.value, one.timestamp, one.headers) for one in found] == rows
    assert {one.leader_epoch for one in found} == ({0} if old.since(3) else {None})


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy"])
def test_messages_of_format_0_have_no_timestamps(old: Old, codec: str) -> None:
    name = new_topic(old, message_format_version="0.9.0", compression_type=codec)
    produce_confluent(old.address, name, [(*row[:4], ()) for row in ROWS])
    found = read_from(old, name, len(ROWS))
    assert sorted((one.key, one.value) for one in found) == sorted((row[1], row[2]) for row in ROWS)
    assert ({one.timestamp for one in found} == {-1}) == (not old.since(3))


def test_positions_and_questions(old: Old, topic: str) -> None:
    tps = [TopicPartition(topic, number) for number in range(3)]
    with consumer(old, group_id=f"g-{topic}", auto_offset_reset="none") as reader:
        reader.assign(tps)
        assert reader.beginning_offsets(tps) == dict.fromkeys(tps, 0)
        assert reader.end_offsets(tps) == dict.fromkeys(tps, 100)
        stamped = reader.offsets_for_times({tps[0]: NOW + 28, tps[1]: NOW + 1_000})
        assert (stamped[tps[0]].offset, stamped[tps[0]].timestamp, stamped[tps[1]]) == (10, NOW + 30, None)
        with pytest.raises(NoOffsetForPartitionError):
            reader.poll(PATIENCE)
        reader.commit(
            {tps[0]: OffsetAndMetadata(7, metadata="note"), tps[1]: OffsetAndMetadata(100), tps[2]: OffsetAndMetadata(100)}
        )
        assert reader.committed(tps)[tps[0]] == OffsetAndMetadata(7, metadata="note")
        for tp, offset in zip(tps, (99, 100, 100), strict=True):
            reader.seek(tp, offset)
        assert [record.value for record in reader.poll(PATIENCE)] == [b"v297"]
        assert reader.position(tps[0]) == 100
        assert topic in reader.list_topics()


def test_a_pattern_finds_topics_that_come_later(old: Old) -> None:
    stem = f"pattern-{next(_numbers)}"
    with consumer(old, group_id=stem, metadata_max_age_ms=500) as reader:
        reader.subscribe(pattern=f"{stem}-.*")
        for name in (f"{stem}-a", f"{stem}-b"):
            create_topic(old.address, name, 1)
            produce_confluent(old.address, name, [(0, None, name.encode(), NOW, ())])
            assert values([reader], 1) == [name.encode()]


def test_only_what_was_committed_is_read(old: Old) -> None:
    name = new_topic(old, partitions=1)
    producer = confluent_kafka.Producer({"bootstrap.servers": old.address, "transactional.id": name})
    producer.init_transactions(PATIENCE)
    for value, end in (
        (b"yes", producer.commit_transaction),
        (b"no", producer.abort_transaction),
        (b"too", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush(PATIENCE)
        end(PATIENCE)
    with consumer(old, isolation_level="read_committed") as committed, consumer(old) as everything:
        for reader in (committed, everything):
            reader.assign([TopicPartition(name, 0)])
        assert values([committed], 2) == [b"too", b"yes"]
        assert values([everything], 3) == [b"no", b"too", b"yes"]
        assert committed.position(TopicPartition(name, 0)) >= 5


def test_reading_on_for_longer_than_one_fetch(old: Old, topic: str) -> None:
    """With fetch sessions from 1.1 on, without before."""
    with consumer(old, fetch_max_wait_ms=50) as reader:
        reader.assign([TopicPartition(topic, number) for number in range(3)])
        assert values([reader], len(ROWS)) == ALL
        for round_ in range(5):
            produce_confluent(old.address, topic, [(round_ % 3, None, b"more", NOW, ())])
            assert values([reader], 1) == [b"more"]


def test_the_consumer_of_asyncio(old: Old, topic: str) -> None:
    async def read() -> list[bytes | None]:
        found = []
        async with AsyncConsumer(bootstrap_servers=old.address, group_id=f"g-{topic}", auto_offset_reset="earliest") as reader:
            await reader.subscribe([topic])
            async for record in reader:
                found.append(record.value)
                if len(found) == len(ROWS):
                    await reader.commit()
                    return found
        return found

    assert sorted(value for value in asyncio.run(asyncio.wait_for(read(), PATIENCE)) if value is not None) == ALL


def test_the_command_line(old: Old, topic: str) -> None:
    done = ottla("consume", "-t", topic, "-g", f"cli-{topic}", "-e", "-f", "%s\\n", bootstrap_servers=old.address)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.encode().split()) == ALL
    listed = ottla("group", "describe", f"cli-{topic}", bootstrap_servers=old.address)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert topic in listed.stdout


def test_administration(old: Old) -> None:
    name, other = f"admin-{next(_numbers)}", f"admin-{next(_numbers)}"
    with Admin(bootstrap_servers=old.address) as admin:
        (node,) = admin.describe_cluster().nodes
        assert f"{node.host}:{node.port}" == old.address
        admin.create_topics({name: 3}, replication_factor=1, configs={"retention.ms": "12345"})
        assert len(admin.describe_topics([name])[name].partitions) == 3
        admin.create_partitions({name: 4})
        if old.since(2, 4):
            admin.create_topics({other: -1})
        else:
            with pytest.raises(UnsupportedApiError, match="give the number of partitions and of replicas"):
                admin.create_topics({other: 1})
        if old.since(1, 1):
            assert admin.describe_configs("topic", name)["retention.ms"].value == "12345"
        else:
            with pytest.raises(UnsupportedApiError, match="DESCRIBE_CONFIGS"):
                admin.describe_configs("topic", name)
        tp = TopicPartition(name, 0)
        produce_confluent(old.address, name, [(0, None, b"%d" % number, NOW + number, ()) for number in range(10)])
        assert admin.list_offsets({tp: "latest"})[tp].offset == 10
        admin.delete_records({tp: 4})
        assert admin.list_offsets({tp: "earliest"})[tp].offset == 4
        admin.alter_group_offsets("of-admin", {tp: 7})
        assert admin.group_offsets("of-admin")[tp].offset == 7
        assert "of-admin" in {group.group_id for group in admin.list_groups()}
        assert admin.describe_groups(["of-admin"])["of-admin"].state == "Empty"
        if old.since(1, 1):
            admin.delete_groups(["of-admin"])
            assert "of-admin" not in {group.group_id for group in admin.list_groups()}
        admin.delete_topics([name])
        assert name not in admin.list_topics()
