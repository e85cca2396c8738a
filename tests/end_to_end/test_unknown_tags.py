"""Programs of another age: brokers that add tagged fields to every answer, and clients that add them to every request (KIP-482)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla import Admin, AsyncConsumer, Broker, Consumer, TopicPartition
from ottla.protocol import duration
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader, encode_request
from ottla.protocol.messages import (
    api_versions_request,
    find_coordinator_request,
    heartbeat_request,
    join_group_request,
    metadata_request,
)
from tests.end_to_end.programs import free_port
from tests.raw_client import RawClient
from tests.simulation.files import content
from tests.unknown_tagged_fields import TaggingProxy, tagged_request

RECORDS = [b"%d" % number for number in range(200)]


@contextmanager
def advertising(address: str) -> Iterator[str]:
    settings = {"advertised.listeners": f"PLAINTEXT://{address}", "group.initial.rebalance.delay.ms": 0}
    port = free_port()
    with Broker(port=port, settings=settings):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def proxy() -> Iterator[TaggingProxy]:
    proxy = TaggingProxy()
    with advertising(proxy.address) as broker, proxy.in_front_of(broker):
        yield proxy


@pytest.fixture
def topic(proxy: TaggingProxy) -> str:
    """A topic of two partitions with ``RECORDS`` in it, each long enough that some answers are cut around their records."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=proxy.address) as admin:
        admin.create_topics({name: 2})
    producer = Producer({"bootstrap.servers": proxy.address})
    for number, value in enumerate(RECORDS):
        producer.produce(name, value=value, key=bytes(2_000), partition=number % 2)
    assert producer.flush(60) == 0
    return name


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_reads_and_commits(proxy: TaggingProxy, topic: str, protocol: str) -> None:
    group = f"{protocol}-{topic}"
    settings = {"bootstrap_servers": proxy.address, "group_id": group, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    found: list[bytes | None] = []
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        while len(found) < len(RECORDS):
            found += [record.value for record in consumer.poll(timeout=60)]
        consumer.commit()
        committed = consumer.committed(TopicPartition(topic, 0), TopicPartition(topic, 1))
    assert sorted(found) == sorted(RECORDS)
    assert [offset.offset for offset in committed.values() if offset is not None] == [100, 100]
    tagged = {api for api, _ in proxy.tagged}
    assert {Api.API_VERSIONS, Api.METADATA, Api.FIND_COORDINATOR, Api.FETCH, Api.OFFSET_COMMIT, Api.OFFSET_FETCH} <= tagged
    mine = {Api.CONSUMER_GROUP_HEARTBEAT} if protocol == "consumer" else {Api.JOIN_GROUP, Api.SYNC_GROUP, Api.LEAVE_GROUP}
    assert mine <= tagged


def test_an_async_consumer_reads(proxy: TaggingProxy, topic: str) -> None:
    async def read() -> list[bytes | None]:
        found: list[bytes | None] = []
        async with AsyncConsumer(bootstrap_servers=proxy.address, auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
            while len(found) < len(RECORDS):
                found += [record.value for record in await consumer.poll(60)]
        return found

    assert sorted(asyncio.run(read())) == sorted(RECORDS)


def test_an_operator_sees_and_changes_everything(proxy: TaggingProxy, topic: str) -> None:
    with Admin(bootstrap_servers=proxy.address) as admin:
        assert len(admin.describe_topics([topic])[topic].partitions) == 2
        assert len(admin.describe_cluster().nodes) == 1
        admin.alter_configs("topic", topic, {"retention.ms": "1000000"})
        assert admin.describe_configs("topic", topic)["retention.ms"].value == "1000000"
        admin.create_partitions({topic: 3})
        assert len(admin.list_topics()[topic].partitions) == 3
        assert admin.list_offsets({TopicPartition(topic, 0): "latest"})
        admin.alter_group_offsets("by-hand", {TopicPartition(topic, 0): 5})
        assert admin.group_offsets("by-hand")[TopicPartition(topic, 0)].offset == 5
        assert "by-hand" in [listing.group_id for listing in admin.list_groups()]
        assert admin.describe_groups(["by-hand"])
        admin.delete_groups(["by-hand"])
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()


def test_a_broker_serves_a_client_that_sends_unknown_tags() -> None:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker, RawClient(broker.bootstrap_servers) as client:

        def ask(api: Api, message: Any) -> Any:
            version = SPOKEN[api].maximum
            frame = b"".join(map(content, encode_request(RequestHeader(api, version, 1, "tagging"), message)))[4:]
            assert tagged_request(frame) != frame
            client.send_frame(tagged_request(frame))
            return client.receive(api, version)[1]

        versions = api_versions_request.ApiVersionsRequest(client_software_name="a", client_software_version="1")
        assert ask(Api.API_VERSIONS, versions).api_keys
        assert ask(Api.METADATA, metadata_request.MetadataRequest(topics=None, include_topic_authorized_operations=False)).brokers
        find = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",))
        while ask(Api.FIND_COORDINATOR, find).coordinators[0].error_code:
            pass
        protocols = (join_group_request.JoinGroupRequestProtocol(name="range", metadata=b""),)
        join = join_group_request.JoinGroupRequest(
            group_id="g",
            session_timeout=duration(10_000),
            rebalance_timeout=duration(10_000),
            member_id="me",
            protocol_type="consumer",
            protocols=protocols,
        )
        refused = ask(Api.JOIN_GROUP, join)
        assert refused.error_code.name == "unknown_member_id"
        beat = heartbeat_request.HeartbeatRequest(group_id="g", generation_id=1, member_id="me")
        assert ask(Api.HEARTBEAT, beat).error_code.name == "unknown_member_id"
