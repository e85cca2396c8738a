"""More partitions and more clients than the process may have file descriptors, with the limit that macOS has by default."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from ottla import Admin, Consumer, TopicPartition
from ottla.errors import OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import produce_request
from ottla.records import NewRecord, encode_batch
from ottla.runtime.descriptors import raise_limit
from tests.end_to_end.broker_process import broker_process
from tests.raw_client import RawClient

PARTITIONS, DESCRIPTORS, CLIENTS = 400, 256, 300
BATCH = encode_batch([NewRecord(b"k", b"v" * 1000, timestamp=1_700_000_000_000)])


def produce(client: RawClient) -> set[ErrorCode]:
    """Write to every partition, each with its own request: all in one would be one turn of the broker."""
    codes = set()
    for partition in range(PARTITIONS):
        data = produce_request.PartitionProduceData(index=partition, records=BATCH)
        topic = produce_request.TopicProduceData(name="t", topic_id=None, partition_data=(data,))
        message = produce_request.ProduceRequest(acks=-1, timeout=timedelta(seconds=30), topic_data=(topic,))
        (answer,) = client.ask(Api.PRODUCE, message, version=12).responses
        codes.add(answer.partition_responses[0].error_code)
    return codes


def test_files_give_way_to_clients_and_clients_wait_until_there_is_room(tmp_path: Path) -> None:
    raise_limit()  # of this process, which has the other ends
    with broker_process(tmp_path / "data", descriptors=DESCRIPTORS) as (process, servers):
        host, port = servers.split(":")
        with RawClient(servers) as client, Admin(bootstrap_servers=servers) as admin:
            admin.create_topics({"t": PARTITIONS})
            assert produce(client) == {ErrorCode.none}
            with ExitStack() as crowd:
                for _ in range(CLIENTS):
                    crowd.enter_context(socket.create_connection((host, int(port)), 30))
                with Admin(bootstrap_servers=servers) as late, pytest.raises(OttlaError) as raised:
                    late.list_topics(timeout=3)
                assert "login" not in f"{raised.value}"
                assert produce(client) == {ErrorCode.none}
                admin.create_topics({"new": 20})
            with Admin(bootstrap_servers=servers) as late:
                assert len(late.list_topics(timeout=30)) == 2
            assert produce(client) == {ErrorCode.none}
            with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition("t", partition) for partition in range(PARTITIONS)])
                count = 0
                while count < 3 * PARTITIONS:
                    count += len(consumer.poll(10))
        process.communicate()
        assert process.returncode == 0
    (line,) = (tmp_path / "data.errors").read_text().splitlines()
    assert "new ones have to wait until some are closed: the process may have 256 file descriptors (ulimit -n)" in line
