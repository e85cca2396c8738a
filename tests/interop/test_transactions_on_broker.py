"""Transactions of other clients on Ottla's broker, Kafka's own tools on the results, and the same requests to Apache Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from ottla import Broker, Consumer, TopicPartition as OurPartition
from tests.interop.other_clients import PRODUCE, Row, create_topic
from tests.interop.real_kafka import KafkaTool

NOW = time.time_ns() // 1_000_000
DUMP = "org.apache.kafka.tools.DumpLogSegments"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


@pytest.fixture
def servers() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap_servers


def read_confluent(servers: str, topic: str, count: int) -> list[bytes]:
    """``count`` committed records, and what comes within a second after them."""
    settings = {"group.id": "readers", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            found.append(message.value())
            end = min(end, time.monotonic() + 1) if len(found) >= count else end
    consumer.close()
    return found


def read_ours(servers: str, topic: str, count: int) -> list[bytes]:
    """The same with our own consumer."""
    found: list[bytes] = []
    with Consumer(bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([OurPartition(topic, 0)])
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found += [record.value or b"" for record in consumer.poll(0.2)]
            end = min(end, time.monotonic() + 1) if len(found) >= count else end
    return found


READERS = {"confluent": read_confluent, "ours": read_ours}


def transactional(servers: str, transactional_id: str, **config: Any) -> confluent_kafka.Producer:
    """librdkafka's transactional producer, ready to begin."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": transactional_id, **config})
    producer.init_transactions(20)
    return producer


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_confluent_reads_processes_and_writes(servers: str, group_protocol: str) -> None:
    """Offsets and records are committed together or not at all, by a member of a group that is fenced by its epoch."""
    create_topic(servers, "in")
    create_topic(servers, "out")
    rows: list[Row] = [(0, None, b"%d" % number, NOW, ()) for number in range(300)]
    PRODUCE["confluent"](servers, "in", rows)
    settings = {"group.id": "workers", "group.protocol": group_protocol, "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, **settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["in"])
    producer = transactional(servers, "worker")
    done, rounds = 0, 0
    deadline = time.monotonic() + 60
    while done < len(rows):
        assert time.monotonic() < deadline
        messages = consumer.consume(50, 0.5)
        if not messages:
            continue
        rounds += 1
        producer.begin_transaction()
        for message in messages:
            producer.produce("out", message.value())
        reached = TopicPartition("in", 0, messages[-1].offset() + 1)
        assert producer.flush(60) == 0
        producer.send_offsets_to_transaction([reached], consumer.consumer_group_metadata(), 20)
        if rounds == 2:
            producer.abort_transaction(20)
            consumer.seek(TopicPartition("in", 0, messages[0].offset()))
            continue
        producer.commit_transaction(20)
        done = reached.offset
    assert [one.offset for one in consumer.committed([TopicPartition("in", 0)], 20)] == [len(rows)]
    consumer.close()
    values = [row[2] for row in rows]
    for reader, read in READERS.items():
        assert read(servers, "out", len(rows)) == values, reader


def test_aiokafka_commits_and_aborts(servers: str) -> None:
    create_topic(servers, "out")

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="aio")
        await producer.start()
        for number in range(6):
            await producer.begin_transaction()
            for part in range(3):
                await producer.send_and_wait("out", b"%d.%d" % (number, part))
            await producer.send_offsets_to_transaction({aiokafka.TopicPartition("out", 0): number}, "aio-group")
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
        await producer.stop()

    asyncio.run(run())
    committed = [b"%d.%d" % (number, part) for number in (0, 2, 4) for part in range(3)]
    for reader, read in READERS.items():
        assert read(servers, "out", len(committed)) == committed, reader
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "aio-group"})
    assert [one.offset for one in consumer.committed([TopicPartition("out", 0)], 20)] == [4]
    consumer.close()


def test_a_second_producer_of_an_id_fences_the_first(servers: str) -> None:
    create_topic(servers, "out")
    first = transactional(servers, "tx", log_level=0)
    first.begin_transaction()
    first.produce("out", b"never")
    first.flush(60)
    second = transactional(servers, "tx")
    second.begin_transaction()
    second.produce("out", b"seen")
    second.commit_transaction(20)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        first.commit_transaction(20)
    assert refused.value.args[0].fatal()
    assert read_ours(servers, "out", 1) == [b"seen"]


@pytest.mark.interop
@pytest.mark.timeout(300)
def test_kafka_s_own_tools_on_transactions(tmp_path: Path, kafka_tool: KafkaTool) -> None:
    """Java writes transactions (version 2), ``kafka-transactions`` looks at them, ``DumpLogSegments`` reads all files."""
    with Broker(tmp_path, settings={"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}) as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, "java")
        create_topic(servers, "mixed")
        options = ("--topic", "java", "--num-records", "3000", "--record-size", "100", "--throughput", "3000")
        transaction = ("--transactional-id", "java-tx", "--transaction-duration-ms", "50", "--bootstrap-server", servers)
        assert "3000 records sent" in kafka_tool("org.apache.kafka.tools.ProducerPerformance", *options, *transaction)
        assert len(read_ours(servers, "java", 3000)) == 3000
        aborting = transactional(servers, "aborting")
        aborting.begin_transaction()
        aborting.produce("mixed", b"never")
        aborting.flush(60)
        aborting.send_offsets_to_transaction(
            [TopicPartition("mixed", 0, 1)], confluent_kafka.Consumer({"group.id": "g"}).consumer_group_metadata(), 20
        )
        aborting.abort_transaction(20)
        hanging = transactional(servers, "hanging")
        hanging.begin_transaction()
        hanging.produce("mixed", b"hangs")
        hanging.flush(60)

        def ask(*arguments: str) -> str:
            return kafka_tool(TRANSACTIONS, "--bootstrap-server", servers, *arguments)

        listed = {row.split()[0]: row.split()[3] for row in ask("list").splitlines()[1:]}
        assert listed == {"java-tx": "CompleteCommit", "aborting": "CompleteAbort", "hanging": "Ongoing"}
        assert ask("describe", "--transactional-id", "hanging").split()[-1] == "mixed-0"
        producers = [row.split() for row in ask("describe-producers", "--topic", "mixed", "--partition", "0").splitlines()[1:]]
        starts = {row[5] for row in producers}
        assert starts == {"None", "2"}
        assert len(ask("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "1").splitlines()) == 1, "it is known"
        ask("abort", "--topic", "mixed", "--partition", "0", "--start-offset", "2")
        after = ask("describe-producers", "--topic", "mixed", "--partition", "0").splitlines()[1:]
        assert {row.split()[5] for row in after} == {"None"}
    _read_by_dump(tmp_path, kafka_tool)


def _read_by_dump(folder: Path, kafka_tool: KafkaTool) -> None:
    def dump(pattern: str, *flags: str) -> str:
        paths = ",".join(str(path) for path in sorted(folder.glob(pattern)) if path.stat().st_size)
        assert paths, pattern
        printed = kafka_tool(DUMP, "--files", paths, *flags)
        assert "isvalid: false" not in printed
        return printed

    state = dump("__transaction_state-0/*.log", "--transaction-log-decoder")
    assert '"transactionalId":"java-tx"' in state
    assert '"clientTransactionVersion":2' in state
    offsets = dump("__consumer_offsets-0/*.log", "--offsets-decoder", "--print-data-log")
    assert "endTxnMarker: ABORT" in offsets
    assert "endTxnMarker: COMMIT" in dump("java-0/*.log", "--print-data-log")
    aborted = dump("mixed-0/*.txnindex")
    assert "producerId: 1" in aborted
    assert "firstOffset: 0 lastOffset: 1" in aborted
    assert "currentTxnFirstOffset" in dump("mixed-0/*.snapshot")
