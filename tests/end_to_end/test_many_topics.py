"""More topics than files may be open: made, written to, read, brought back and deleted over the wire."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    create_topics_request,
    delete_topics_request,
    list_offsets_request,
    metadata_request,
    produce_request,
)
from ottla.records import NewRecord, encode_batch
from tests.end_to_end.broker_process import broker_process
from tests.raw_client import RawClient

TOPICS = [f"topic-{number}" for number in range(300)]
DESCRIPTORS = 64
_TIMEOUT = timedelta(seconds=30)
LATEST = -1


def create(client: RawClient) -> None:
    wanted = tuple(
        create_topics_request.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
        for name in TOPICS
    )
    answer = client.ask(Api.CREATE_TOPICS, create_topics_request.CreateTopicsRequest(topics=wanted))
    assert {row.error_code for row in answer.topics} == {ErrorCode.none}


def delete(client: RawClient) -> None:
    states = tuple(delete_topics_request.DeleteTopicState(name=name, topic_id=None) for name in TOPICS)
    answer = client.ask(Api.DELETE_TOPICS, delete_topics_request.DeleteTopicsRequest(topics=states, timeout=_TIMEOUT))
    assert {row.error_code for row in answer.responses} == {ErrorCode.none}


def produce(client: RawClient) -> None:
    data = produce_request.PartitionProduceData(index=0, records=encode_batch([NewRecord(b"k", b"v", timestamp=1_700_000_000_000)]))
    for name in TOPICS:
        topic = produce_request.TopicProduceData(name=name, topic_id=None, partition_data=(data,))
        message = produce_request.ProduceRequest(acks=-1, timeout=_TIMEOUT, topic_data=(topic,))
        (answer,) = client.ask(Api.PRODUCE, message, version=12).responses
        assert answer.partition_responses[0].error_code is ErrorCode.none


def ends(client: RawClient) -> list[int]:
    partition = list_offsets_request.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=LATEST)
    topics = tuple(list_offsets_request.ListOffsetsTopic(name=name, partitions=(partition,)) for name in TOPICS)
    message = list_offsets_request.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout=_TIMEOUT)
    return [row.partitions[0].offset for row in client.ask(Api.LIST_OFFSETS, message).topics]


def described(client: RawClient) -> Any:
    message = metadata_request.MetadataRequest(
        topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return client.ask(Api.METADATA, message).topics


def test_more_topics_than_descriptors(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with broker_process(folder, descriptors=DESCRIPTORS) as (process, servers):
        with RawClient(servers) as client:
            create(client)
            produce(client)
            assert ends(client) == [1] * len(TOPICS)
        _, _ = process.communicate()
        assert process.returncode == 0, (tmp_path / "data.errors").read_text()
    assert (folder / ".kafka_cleanshutdown").exists()
    with broker_process(folder, descriptors=DESCRIPTORS) as (process, servers):
        with RawClient(servers) as client:
            assert ends(client) == [1] * len(TOPICS)
            delete(client)
        process.kill()  # what was acknowledged is deleted for good
        process.communicate()
    with broker_process(folder, descriptors=DESCRIPTORS) as (process, servers):
        with RawClient(servers) as client:
            assert described(client) == ()
        process.communicate()
        assert process.returncode == 0, (tmp_path / "data.errors").read_text()
    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_topics_that_were_acknowledged_survive_a_kill(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as (process, servers):
        with RawClient(servers) as client:
            create(client)
        process.kill()
        process.communicate()
    with broker_process(tmp_path / "data") as (process, servers):
        with RawClient(servers) as client:
            assert [topic.name for topic in described(client)] == TOPICS
        process.communicate()
