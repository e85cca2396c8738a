"""Each API of the broker through the core, as a client sees it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api import produce as produce_api
from ottla.broker.effects import CloseConnection, NoReply
from ottla.broker.group_coordinator_service import CLIENT_ASSIGNOR_APIS
from ottla.protocol import ErrorCode
from ottla.protocol.apis import ADVERTISED_MINIMUM, SPOKEN, Api
from ottla.protocol.messages import (
    api_versions_request,
    create_topics_request,
    describe_cluster_request,
    describe_configs_request,
    fetch_request,
    find_coordinator_request,
    init_producer_id_request,
    list_offsets_request,
    metadata_request,
)
from ottla.records import Compression
from ottla.simulation.clock import START
from ottla.simulation.requests import produce_message
from tests.edge_case_requests import CENTRAL, LOGIN
from tests.simulation.broker import CoreUnderTest
from tests.simulation.requests import fetch_message
from tests.unit.broker.harness import batch
from tests.unit.broker.requests import NO_WAIT, ask_metadata, create, delete, fetched, produce


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = CoreUnderTest(tmp_path)
    yield core
    core.close()


# ApiVersions


def test_api_versions_lists_what_has_a_handler_and_nothing_else(broker: CoreUnderTest) -> None:
    request = api_versions_request.ApiVersionsRequest(client_software_name="tests", client_software_version="1.0")
    response = broker.ask(Api.API_VERSIONS, request)
    advertised = {Api(one.api_key): (one.min_version, one.max_version) for one in response.api_keys}
    served = {api: versions for api, versions in SPOKEN.items() if api not in CLIENT_ASSIGNOR_APIS | LOGIN | CENTRAL}
    assert advertised == {api: (ADVERTISED_MINIMUM.get(api, low), high) for api, (low, high) in served.items()}
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert levels == {"metadata.version": 30, "group.version": 1, "transaction.version": 2}
    known = {feature.name for feature in response.supported_features}
    assert known == {"metadata.version", "group.version", "transaction.version"}


def test_responses_to_old_clients_omit_features_whose_lowest_level_is_zero(broker: CoreUnderTest) -> None:
    request = api_versions_request.ApiVersionsRequest(client_software_name="tests", client_software_version="1.0")
    response = broker.ask(Api.API_VERSIONS, request, version=3)
    assert [feature.name for feature in response.supported_features] == ["metadata.version"]


@pytest.mark.parametrize("name", ["", "-dash", "no space", "ünicode"])
def test_an_invalid_client_name_is_an_error(broker: CoreUnderTest, name: str) -> None:
    request = api_versions_request.ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
    response = broker.ask(Api.API_VERSIONS, request)
    assert (response.error_code, response.api_keys) == (ErrorCode.invalid_request, ())


# Metadata


@pytest.mark.parametrize(("asked", "of_topics", "of_cluster"), [(True, 3576, 8096), (False, -(2**31), -(2**31))])
def test_authorized_operations_are_all_operations(broker: CoreUnderTest, asked: bool, of_topics: int, of_cluster: int) -> None:
    create(broker, "a")
    wanted = tuple(metadata_request.MetadataRequestTopic(topic_id=None, name=name) for name in ("a", "nowhere"))
    message = metadata_request.MetadataRequest(
        topics=wanted,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=asked,
        include_cluster_authorized_operations=asked,
    )
    response = broker.ask(Api.METADATA, message, version=10)
    assert [topic.topic_authorized_operations for topic in response.topics] == [of_topics] * 2
    assert response.cluster_authorized_operations == of_cluster
    for endpoint_type, expected in ((1, of_cluster), (2, -(2**31))):
        describe = describe_cluster_request.DescribeClusterRequest(
            include_cluster_authorized_operations=asked, endpoint_type=endpoint_type, include_fenced_brokers=False
        )
        assert broker.ask(Api.DESCRIBE_CLUSTER, describe).cluster_authorized_operations == expected


def test_metadata_names_the_broker_and_all_topics(broker: CoreUnderTest) -> None:
    create(broker, "a", 2)
    create(broker, "b")
    response = ask_metadata(broker)
    assert [(one.node_id, one.host, one.port) for one in response.brokers] == [(1, "127.0.0.1", 9092)]
    assert response.controller_id == 1
    assert response.cluster_id == broker.store.cluster_id
    assert {topic.name: [part.partition_index for part in topic.partitions] for topic in response.topics} == {"a": [0, 1], "b": [0]}
    assert {(part.leader_id, part.replica_nodes, part.isr_nodes) for topic in response.topics for part in topic.partitions} == {
        (1, (1,), (1,))
    }


def test_metadata_creates_a_topic_only_if_the_client_and_the_broker_want_it(tmp_path: Path) -> None:
    willing, unwilling = (
        CoreUnderTest(tmp_path / "a", **{"num.partitions": 3}),
        CoreUnderTest(tmp_path / "b", **{"auto.create.topics.enable": False}),
    )
    assert ask_metadata(willing, "new").topics[0].error_code is ErrorCode.unknown_topic_or_partition
    assert len(ask_metadata(willing, "new", create=True).topics[0].partitions) == 3
    assert ask_metadata(willing, "new").topics[0].error_code is ErrorCode.none
    assert ask_metadata(unwilling, "new", create=True).topics[0].error_code is ErrorCode.unknown_topic_or_partition
    willing.close()
    unwilling.close()


def test_metadata_by_id_and_by_bad_names(broker: CoreUnderTest) -> None:
    topic_id = create(broker, "a").topic_id
    unknown = uuid.uuid4()
    response = ask_metadata(broker, "ignored", ids=(topic_id, unknown))
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [
        ("a", topic_id, ErrorCode.none),
        (None, unknown, ErrorCode.unknown_topic_id),
    ]
    for name in (".", "..", "a b", "x" * 250, "ü"):
        assert ask_metadata(broker, name, create=True).topics[0].error_code is ErrorCode.invalid_topic_exception


# CreateTopics, DeleteTopics


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "code"),
    [
        ("orders", 0, {}, ErrorCode.invalid_partitions),
        ("orders", 20_000, {}, ErrorCode.policy_violation),
        ("a/b", 1, {}, ErrorCode.invalid_topic_exception),
        ("orders", 1, {"retention_ms": "soon"}, ErrorCode.invalid_config),
        ("orders", 1, {"retention_m": "1"}, ErrorCode.invalid_config),
        ("orders", 1, {"cleanup_policy": "shred"}, ErrorCode.invalid_config),
        ("taken", 1, {}, ErrorCode.topic_already_exists),
        ("dotted_name", 1, {}, ErrorCode.invalid_topic_exception),
    ],
)
def test_a_topic_that_cannot_be_made_is_refused_and_why(
    broker: CoreUnderTest, name: str, partitions: int, configs: dict[str, str], code: ErrorCode
) -> None:
    create(broker, "taken")
    create(broker, "dotted.name")
    result = create(broker, name, partitions, **configs)
    assert result.error_code is code
    assert result.error_message


def test_a_new_topic_says_its_settings_and_where_they_come_from(broker: CoreUnderTest) -> None:
    result = create(broker, "orders", -1, retention_ms="5000")
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.none, 1, 1)
    settings = {config.name: (config.value, config.config_source) for config in result.configs}
    assert settings["retention.ms"] == ("5000", 1)
    assert settings["segment.bytes"] == ("1073741824", 5)


def test_create_topics_checks_without_creating_and_refuses_names_given_twice(broker: CoreUnderTest) -> None:
    one = create_topics_request.CreatableTopic(name="a", num_partitions=1, replication_factor=1, assignments=(), configs=())
    message = create_topics_request.CreateTopicsRequest(topics=(one,), validate_only=True)
    assert broker.ask(Api.CREATE_TOPICS, message).topics[0].error_code is ErrorCode.none
    assert broker.core.catalog.topics.get("a") is None
    twice = create_topics_request.CreateTopicsRequest(topics=(one, one))
    assert [topic.error_code for topic in broker.ask(Api.CREATE_TOPICS, twice).topics] == [ErrorCode.invalid_request]


@pytest.mark.parametrize(
    ("replication", "placed", "code"),
    [
        (3, (), ErrorCode.invalid_replication_factor),
        (-1, ((0, (1,)), (1, (1,))), ErrorCode.none),
        (-1, ((0, (1,)), (2, (1,))), ErrorCode.invalid_replica_assignment),
        (-1, ((0, (1, 2)),), ErrorCode.invalid_replica_assignment),
        (1, ((0, (1,)),), ErrorCode.invalid_request),
    ],
)
def test_replicas_can_only_be_here(broker: CoreUnderTest, replication: int, placed: Any, code: ErrorCode) -> None:
    wanted = create_topics_request.CreatableTopic(
        name="a",
        num_partitions=-1,
        replication_factor=replication,
        assignments=tuple(create_topics_request.CreatableReplicaAssignment(partition_index=p, broker_ids=ids) for p, ids in placed),
        configs=(),
    )
    (result,) = broker.ask(Api.CREATE_TOPICS, create_topics_request.CreateTopicsRequest(topics=(wanted,))).topics
    assert result.error_code is code


def test_a_deleted_topic_is_gone_and_its_name_is_free(broker: CoreUnderTest, tmp_path: Path) -> None:
    first = create(broker).topic_id
    produce(broker, batch(3))
    assert delete(broker, "orders").error_code is ErrorCode.none
    assert ask_metadata(broker, "orders").topics[0].error_code is ErrorCode.unknown_topic_or_partition
    second = create(broker).topic_id
    assert produce(broker, batch()).base_offset == 0
    broker.run_jobs()
    assert [path.name for path in tmp_path.glob("orders*")] == ["orders-0"]
    assert first != second
    assert delete(broker, None, first).error_code is ErrorCode.unknown_topic_id
    assert delete(broker, None, second).error_code is ErrorCode.none
    assert delete(broker, "orders").error_code is ErrorCode.unknown_topic_or_partition


def test_work_that_comes_late_does_not_touch_a_topic_of_the_same_name(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 1, segment_bytes="1048576", retention_ms="1")
    for _ in range(3):
        produce(broker, batch(size=700_000))
    broker.pass_time(broker.core.catalog.config.log_retention_check_interval_ms)
    late, broker.jobs = broker.jobs, []
    assert {job.tag[0] for job in late} >= {"seal", "mark-deleted"}
    delete(broker, "orders")
    create(broker, "orders", 1)
    produce(broker, batch(3))
    broker.jobs = [*late, *broker.jobs]
    broker.run_jobs()
    names = {path.name for path in (tmp_path / "orders-0").iterdir()}
    assert names == {f"{0:020d}.log", "leader-epoch-checkpoint", "partition.metadata"}
    assert [path.name for path in tmp_path.glob("orders*")] == ["orders-0"]
    broker.kill()
    again = CoreUnderTest(tmp_path)
    assert again.core.catalog.log("orders", 0).end_offset == 3
    again.close()


def test_the_coordinator_s_topic_cannot_be_deleted(broker: CoreUnderTest) -> None:
    broker.ask(Api.FIND_COORDINATOR, find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)))
    assert delete(broker, "__consumer_offsets").error_code is ErrorCode.invalid_request


def test_topics_and_records_outlast_the_process(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    topic_id = create(broker, "orders", 3, retention_ms="-1").topic_id
    produce(broker, batch(4), partition=2)
    broker.kill()
    again = CoreUnderTest(tmp_path)
    topic = again.core.catalog.topics.get("orders")
    assert topic is not None
    assert (topic.topic_id, topic.partition_count, topic.config.retention_ms) == (topic_id, 3, -1)
    assert again.core.catalog.log("orders", 2).end_offset == 4
    assert again.warnings == []
    again.close()


# Produce


def test_produce_gives_offsets_and_the_start_of_the_log(broker: CoreUnderTest) -> None:
    create(broker)
    results = [produce(broker, batch(count)) for count in (1, 2, 3)]
    assert [(one.error_code, one.base_offset, one.log_start_offset) for one in results] == [
        (ErrorCode.none, at, 0) for at in (0, 1, 3)
    ]


def _damaged() -> bytes:
    data = bytearray(batch())
    data[-1] ^= 1
    return bytes(data)


def _control() -> bytes:
    return batch(control=True)


def test_a_topic_that_asks_for_more_replicas_in_sync_than_it_has_is_written_to_all_the_same(broker: CoreUnderTest) -> None:
    assert create(broker, "strict", min_insync_replicas="2").error_code is ErrorCode.none
    assert produce(broker, batch(), topic="strict", acks=-1).error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("no_such", "1", "Unknown topic config name: no.such"),
        ("retention_ms", "soon", "Invalid value soon for configuration retention.ms: "),
        ("segment_bytes", "1", "Invalid value 1 for configuration segment.bytes: "),
        ("cleanup_policy", "shred", "Invalid value shred for configuration cleanup.policy: "),
    ],
)
def test_a_bad_setting_of_a_topic_is_named_in_words_that_clients_look_for(
    broker: CoreUnderTest, name: str, value: str, words: str
) -> None:
    result = create(broker, **{name: value})
    assert result.error_code is ErrorCode.invalid_config
    assert result.error_message.startswith(words)


@pytest.mark.parametrize(
    ("records", "where", "code"),
    [
        (batch(), {"topic": "nowhere"}, ErrorCode.unknown_topic_or_partition),
        (batch(), {"partition": 7}, ErrorCode.unknown_topic_or_partition),
        (batch(), {"partition": -1}, ErrorCode.unknown_topic_or_partition),
        (batch(), {"acks": 2}, ErrorCode.invalid_required_acks),
        (None, {}, ErrorCode.invalid_record),
        (b"", {}, ErrorCode.invalid_record),
        (_damaged(), {}, ErrorCode.corrupt_message),
        (batch()[:-1], {}, ErrorCode.invalid_record),
        (batch() + batch(), {}, ErrorCode.invalid_record),
        (_control(), {}, ErrorCode.invalid_record),
        (
            batch(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
            {},
            ErrorCode.transactional_id_authorization_failed,
        ),
        (batch(producer_id=1, producer_epoch=0), {}, ErrorCode.invalid_record),
        (batch(size=2_000_000), {}, ErrorCode.message_too_large),
        (batch(timestamp=START.wall + 3_600_001), {}, ErrorCode.invalid_timestamp),
        (batch(compression=Compression.ZSTD), {"version": 6}, ErrorCode.unsupported_compression_type),
    ],
)
def test_a_batch_that_cannot_be_stored_is_refused_and_nothing_is_written(
    broker: CoreUnderTest, records: bytes | None, where: dict[str, Any], code: ErrorCode
) -> None:
    create(broker)
    result = produce(broker, records, **where)
    assert result.error_code is code
    assert result.error_message
    assert broker.core.catalog.log("orders", 0).end_offset == 0


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_taken_as_it_is(broker: CoreUnderTest, codec: Compression) -> None:
    create(broker)
    assert produce(broker, batch(50, compression=codec)).error_code is ErrorCode.none
    assert broker.core.catalog.log("orders", 0).end_offset == 50


def test_a_batch_that_inflates_beyond_a_limit_is_refused(broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    create(broker)
    monkeypatch.setattr(produce_api, "DEFAULT_MAX_BATCH_BYTES", 1 << 20)
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        result = produce(broker, batch(size=2 << 20, compression=codec))
        assert result.error_code is ErrorCode.invalid_record, codec
        assert "1048576" in result.error_message


def test_produce_without_an_answer_gets_none_and_a_failure_closes_the_connection(broker: CoreUnderTest) -> None:
    create(broker)
    good = broker.send(Api.PRODUCE, produce_message(batch(), acks=0), version=12)
    bad = broker.send(Api.PRODUCE, produce_message(_damaged(), acks=0), version=12)
    assert broker.others[0] == NoReply(good)
    closing = broker.others[1]
    assert isinstance(closing, CloseConnection)
    assert (closing.ticket, "CORRUPT_MESSAGE".lower() in closing.reason) == (bad, True)


def test_produce_by_topic_id(broker: CoreUnderTest) -> None:
    topic_id = create(broker).topic_id
    assert produce(broker, batch(), version=13, topic_id=topic_id).base_offset == 0
    assert produce(broker, batch(), version=13, topic_id=uuid.uuid4()).error_code is ErrorCode.unknown_topic_id


def test_a_batch_that_is_sent_twice_is_stored_once(broker: CoreUnderTest) -> None:
    create(broker)
    one = batch(3, producer_id=4, producer_epoch=0, base_sequence=0)
    two = batch(2, producer_id=4, producer_epoch=0, base_sequence=3)
    assert [produce(broker, data).base_offset for data in (one, two, one, two)] == [0, 3, 0, 3]
    gap = batch(producer_id=4, producer_epoch=0, base_sequence=9)
    assert produce(broker, gap).error_code is ErrorCode.out_of_order_sequence_number
    assert broker.core.catalog.log("orders", 0).end_offset == 5


def test_the_broker_stamps_records_where_the_topic_says_so(broker: CoreUnderTest) -> None:
    create(broker, "orders", 1, message_timestamp_type="LogAppendTime")
    result = produce(broker, batch(timestamp=1))
    assert result.log_append_time_ms == START.wall


def test_with_flush_messages_the_answer_waits_for_the_disk(broker: CoreUnderTest, tmp_path: Path) -> None:
    create(broker, "orders", 1, flush_messages="1")
    ticket = broker.send(Api.PRODUCE, produce_message(batch()), version=12)
    assert ticket not in broker.replies
    broker.run_jobs()
    assert broker.replies[ticket].responses[0].partition_responses[0].base_offset == 0
    assert broker.core.catalog.log("orders", 0).recovery_point == 1


def test_a_disk_that_fails_to_flush_is_not_an_acknowledgement(broker: CoreUnderTest) -> None:
    create(broker, "orders", 1, flush_messages="1")
    ticket = broker.send(Api.PRODUCE, produce_message(batch()), version=12)
    job = next(job for job in broker.jobs if job.tag[0] == "flush")
    broker.jobs.clear()
    broker.take(broker.core.on_job(job.tag, OSError(5, "Input/output error"), broker.now))
    assert broker.replies[ticket].responses[0].partition_responses[0].error_code is ErrorCode.kafka_storage_error


# Fetch


def test_fetch_gives_ranges_of_files_and_where_the_log_ends(broker: CoreUnderTest) -> None:
    create(broker)
    produce(broker, batch(3))
    part = fetched(broker.ask(Api.FETCH, fetch_message(1), version=12))
    assert (part.error_code, part.high_watermark, part.last_stable_offset, part.log_start_offset) == (ErrorCode.none, 3, 3, 0)
    assert len(part.records) == broker.core.catalog.log("orders", 0).size
    assert part.aborted_transactions is None


@pytest.mark.parametrize(
    ("message", "version", "code"),
    [
        (fetch_message(4), 12, ErrorCode.offset_out_of_range),
        (fetch_message(-1), 12, ErrorCode.offset_out_of_range),
        (fetch_message(topic="nowhere"), 12, ErrorCode.unknown_topic_or_partition),
        (fetch_message(partition=3), 12, ErrorCode.unknown_topic_or_partition),
        (fetch_message(topic_id=uuid.uuid4()), 13, ErrorCode.unknown_topic_id),
        (fetch_message(epoch=1), 12, ErrorCode.unknown_leader_epoch),
    ],
)
def test_a_partition_that_cannot_be_read_says_why_at_once(
    broker: CoreUnderTest, message: Any, version: int, code: ErrorCode
) -> None:
    create(broker)
    produce(broker, batch(3))
    assert fetched(broker.ask(Api.FETCH, message, version=version)).error_code is code


def test_an_empty_answer_is_zero_bytes_and_not_null(broker: CoreUnderTest) -> None:
    create(broker)
    assert fetched(broker.ask(Api.FETCH, fetch_message(), version=12)).records == b""


def test_a_fetch_waits_for_data(broker: CoreUnderTest) -> None:
    create(broker)
    ticket = broker.send(Api.FETCH, fetch_message(wait=500), version=12)
    broker.pass_time(499)
    assert ticket not in broker.replies
    produce(broker, batch(2))
    assert fetched(broker.replies[ticket]).high_watermark == 2
    assert len(broker.core.state.fetch_purgatory) == 0
    broker.pass_time(1000)


def test_a_fetch_waits_no_longer_than_its_client_will(broker: CoreUnderTest) -> None:
    create(broker)
    produce(broker, batch())
    ticket = broker.send(Api.FETCH, fetch_message(wait=500, min_bytes=10_000), version=12)
    produce(broker, batch())
    assert ticket not in broker.replies
    broker.pass_time(500)
    assert fetched(broker.replies[ticket]).high_watermark == 2
    assert len(fetched(broker.replies[ticket]).records) > 0


def test_a_parked_fetch_hears_of_its_topic_s_end(broker: CoreUnderTest) -> None:
    create(broker)
    ticket = broker.send(Api.FETCH, fetch_message(wait=500), version=12)
    delete(broker, "orders")
    assert fetched(broker.replies[ticket]).error_code is ErrorCode.unknown_topic_or_partition


def test_a_parked_fetch_goes_with_its_connection(broker: CoreUnderTest) -> None:
    create(broker)
    ticket = broker.send(Api.FETCH, fetch_message(wait=500), version=12, connection=5)
    broker.take(broker.core.on_disconnect(5, broker.now))
    produce(broker, batch())
    assert ticket not in broker.replies
    assert len(broker.core.state.fetch_purgatory) == 0


def test_the_first_batch_may_be_larger_than_every_limit_the_second_not(broker: CoreUnderTest) -> None:
    create(broker, "orders", 2)
    for partition in (0, 1):
        produce(broker, batch(size=500), partition=partition)
    parts = tuple(fetch_request.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=10) for partition in (0, 1))
    message = fetch_request.FetchRequest(
        max_wait=NO_WAIT,
        min_bytes=1,
        max_bytes=10,
        topics=(fetch_request.FetchTopic(topic="orders", partitions=parts),),
        forgotten_topics_data=(),
    )
    first, second = broker.ask(Api.FETCH, message, version=12).responses[0].partitions
    assert len(first.records) > 500
    assert second.records == b""


def test_only_the_broker_writes_to_its_own_topics(broker: CoreUnderTest) -> None:
    broker.core.state.groups.ensure_topic()
    refused = produce(broker, batch(), topic="__consumer_offsets")
    assert refused.error_code is ErrorCode.invalid_topic_exception
    assert broker.core.catalog.log("__consumer_offsets", 0).end_offset == 0


# ListOffsets


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (6, -1)),
        (-2, (0, -1)),
        (-3, (5, START.wall + 12)),
        (START.wall + 1, (1, START.wall + 1)),
        (START.wall + 5, (3, START.wall + 10)),
        (START.wall + 13, (-1, -1)),
        (0, (0, START.wall)),
    ],
)
def test_list_offsets_finds_ends_and_times(broker: CoreUnderTest, timestamp: int, expected: tuple[int, int]) -> None:
    create(broker)
    produce(broker, batch(3, step=1))
    produce(broker, batch(3, timestamp=START.wall + 10, step=1))
    assert _listed(broker, timestamp) == (ErrorCode.none, *expected)


def _listed(broker: CoreUnderTest, timestamp: int, topic: str = "orders") -> tuple[ErrorCode, int, int]:
    wanted = list_offsets_request.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    message = list_offsets_request.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=(list_offsets_request.ListOffsetsTopic(name=topic, partitions=(wanted,)),),
        timeout=NO_WAIT,
    )
    part = broker.ask(Api.LIST_OFFSETS, message).topics[0].partitions[0]
    return part.error_code, part.offset, part.timestamp


def test_list_offsets_of_an_empty_log_and_of_none(broker: CoreUnderTest) -> None:
    create(broker)
    assert [_listed(broker, timestamp)[1:] for timestamp in (-1, -2, -3, 5)] == [(0, -1), (0, -1), (-1, -1), (-1, -1)]
    assert _listed(broker, -1, "nowhere")[0] is ErrorCode.unknown_topic_or_partition
    assert _listed(broker, -17)[0] is ErrorCode.unsupported_version


# InitProducerId, FindCoordinator, DescribeCluster, DescribeConfigs


def _producer_id(broker: CoreUnderTest, transactional_id: str | None = None) -> Any:
    message = init_producer_id_request.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout=NO_WAIT)
    return broker.ask(Api.INIT_PRODUCER_ID, message)


def test_no_producer_id_is_given_out_twice_not_even_after_a_kill(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        broker = CoreUnderTest(tmp_path)
        seen += [_producer_id(broker).producer_id for _ in range(2)]
        broker.kill()
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


def test_this_broker_coordinates_every_transaction(broker: CoreUnderTest) -> None:
    message = find_coordinator_request.FindCoordinatorRequest(key_type=1, coordinator_keys=("tx",))
    (coordinator,) = broker.ask(Api.FIND_COORDINATOR, message).coordinators
    assert (coordinator.error_code, coordinator.node_id, coordinator.port) == (ErrorCode.none, 1, 9092)
    topic = broker.core.catalog.topics.get("__transaction_state")
    assert topic is not None
    assert (topic.partition_count, topic.internal, topic.config.cleanup_policy) == (50, True, "compact")


def test_this_broker_coordinates_every_group(broker: CoreUnderTest) -> None:
    message = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("a", "b"))
    found = broker.ask(Api.FIND_COORDINATOR, message).coordinators
    assert [(one.key, one.node_id, one.host, one.port) for one in found] == [
        ("a", 1, "127.0.0.1", 9092),
        ("b", 1, "127.0.0.1", 9092),
    ]
    topic = broker.core.catalog.topics.get("__consumer_offsets")
    assert topic is not None
    assert (topic.partition_count, topic.internal) == (50, True)


def test_describe_cluster(broker: CoreUnderTest) -> None:
    def ask(endpoint_type: int) -> Any:
        message = describe_cluster_request.DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=endpoint_type, include_fenced_brokers=False
        )
        return broker.ask(Api.DESCRIBE_CLUSTER, message)

    response = ask(1)
    assert (response.cluster_id, response.controller_id) == (broker.store.cluster_id, 1)
    assert [(one.broker_id, one.host, one.port) for one in response.brokers] == [(1, "127.0.0.1", 9092)]
    assert ask(2).error_code is ErrorCode.mismatched_endpoint_type
    assert ask(3).error_code is ErrorCode.unsupported_endpoint_type


def test_describe_configs_of_a_topic_and_of_the_broker(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path, **{"log.roll.ms": 77})
    create(broker, "orders", 1, retention_ms="5000")

    def ask(kind: int, name: str, keys: tuple[str, ...] | None = None) -> Any:
        resource = describe_configs_request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        message = describe_configs_request.DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
        return broker.ask(Api.DESCRIBE_CONFIGS, message).results[0]

    topic = {config.name: config for config in ask(2, "orders").configs}
    assert (topic["retention.ms"].value, topic["retention.ms"].config_source) == ("5000", 1)
    assert [(one.name, one.value, one.source) for one in topic["retention.ms"].synonyms] == [
        ("retention.ms", "5000", 1),
        ("log.retention.ms", "604800000", 5),
    ]
    assert (topic["segment.ms"].value, topic["segment.ms"].config_source) == ("77", 4)
    assert topic["cleanup.policy"].value == "delete"
    (partitions,) = ask(4, "1", ("num.partitions",)).configs
    assert (partitions.value, partitions.config_source, partitions.read_only) == ("1", 5, True)
    assert ask(2, "nowhere").error_code is ErrorCode.unknown_topic_or_partition
    assert ask(4, "9").error_code is ErrorCode.invalid_request
    assert ask(8, "1").error_code is ErrorCode.invalid_request
    broker.close()


# What happens by itself


def test_retention_runs_by_itself_and_files_go_after_a_while(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path, **{"log.retention.check.interval.ms": 1000})
    create(broker, "orders", 1, retention_ms="5000", file_delete_delay_ms="60000")
    produce(broker, batch(3))
    broker.pass_time(5_000)
    broker.run_jobs()
    assert broker.core.catalog.log("orders", 0).start_offset == 0
    broker.pass_time(1_000)
    broker.run_jobs()
    assert broker.core.catalog.log("orders", 0).start_offset == 3
    folder = tmp_path / "orders-0"
    assert (folder / f"{0:020d}.log.deleted").exists()
    assert fetched(broker.ask(Api.FETCH, fetch_message(0), version=12)).error_code is ErrorCode.offset_out_of_range
    broker.pass_time(60_000)
    broker.run_jobs()
    assert not list(folder.glob("*.deleted"))
    broker.close()


def test_checkpoints_are_written_by_themselves(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 1, flush_messages="1")
    produce(broker, batch(3))
    broker.run_jobs()
    broker.pass_time(60_000)
    broker.run_jobs()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n0\n"
    broker.close()
