"""The client's side of a connection, without a socket."""

from __future__ import annotations

import struct
import uuid

import pytest

from ottla.errors import ProtocolError, UnsupportedApiError
from ottla.protocol import NO_THROTTLE, ErrorCode, duration
from ottla.protocol.apis import Api, VersionRange
from ottla.protocol.codec import RequestHeader, decode_request, encode_response
from ottla.protocol.connection import ClientConnection, ConnectionState
from ottla.protocol.messages import (
    api_versions_response,
    consumer_group_heartbeat_request,
    create_topics_request,
    fetch_request,
    fetch_response,
    find_coordinator_request,
    find_coordinator_response,
    heartbeat_request,
    heartbeat_response,
    offset_fetch_request,
    produce_request,
    sasl_authenticate_response,
    sasl_handshake_response,
)
from ottla.protocol.sasl import SaslResponse
from ottla.records import Compression, NewRecord, encode_batch
from tests.unit.protocol.receiving import joined, ready, receive, versions_answer
from tests.unknown_tagged_fields import tagged_answer

HEARTBEAT = heartbeat_request.HeartbeatRequest(group_id="g", generation_id=3, member_id="m")


def heartbeat_answer(frame: bytes) -> bytes:
    header, _ = decode_request(frame[4:])
    return joined(
        encode_response(header, heartbeat_response.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none))
    )


def test_the_newest_version_of_both_is_used() -> None:
    connection = ready(heartbeat=VersionRange(0, 3))
    header, message = decode_request(joined(connection.send("t", Api.HEARTBEAT, HEARTBEAT))[4:])
    assert (header.version, header.client_id, message) == (3, "me", HEARTBEAT)


def test_api_versions_is_retried_in_version_0() -> None:
    connection = ClientConnection("me")
    first, _ = decode_request(joined(connection.start())[4:])
    refusal = struct.pack(">iihi", 10, first.correlation_id, 35, 0)
    responses, again = receive(connection, refusal)
    header, _ = decode_request(joined(again)[4:])
    assert (responses, header.version) == ([], 0)
    receive(connection, versions_answer(header, heartbeat=VersionRange(0, 1)))
    assert connection.versions == {Api.HEARTBEAT: VersionRange(0, 1)}


def test_responses_have_the_tickets_of_their_requests() -> None:
    connection = ready(heartbeat=VersionRange(0, 4))
    frames = [joined(connection.send(ticket, Api.HEARTBEAT, HEARTBEAT)) for ticket in "abc"]
    responses, _ = receive(connection, b"".join(heartbeat_answer(frame) for frame in frames))
    assert [response.ticket for response in responses] == ["a", "b", "c"]


def test_a_response_out_of_order_is_an_error() -> None:
    connection = ready(heartbeat=VersionRange(0, 4))
    connection.send("a", Api.HEARTBEAT, HEARTBEAT)
    second = joined(connection.send("b", Api.HEARTBEAT, HEARTBEAT))
    with pytest.raises(ProtocolError, match="correlation id 3, expected 2"):
        receive(connection, heartbeat_answer(second))


def test_a_response_without_a_request_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="arrived without a request"):
        receive(ready(), struct.pack(">ii", 4, 1))


def test_an_api_that_the_broker_lacks_is_named() -> None:
    with pytest.raises(UnsupportedApiError, match="the broker offers HEARTBEAT versions none"):
        ready().send("a", Api.HEARTBEAT, HEARTBEAT)
    with pytest.raises(UnsupportedApiError, match="FETCH versions 0 to 3"):
        ready(fetch=VersionRange(0, 3)).send("a", Api.FETCH, fetch(None))


def fetch(topic_id: uuid.UUID | None) -> fetch_request.FetchRequest:
    topic = fetch_request.FetchTopic(topic="t", topic_id=topic_id, partitions=())
    return fetch_request.FetchRequest(max_wait=duration(1), min_bytes=1, topics=(topic,), forgotten_topics_data=())


def fetched(header: RequestHeader, records: bytes) -> bytes:
    """A Fetch response whose frame is so large that its memory is reused."""
    part = fetch_response.PartitionData(
        partition_index=0, error_code=ErrorCode.none, high_watermark=1, aborted_transactions=None, records=records
    )
    topic = fetch_response.FetchableTopicResponse(topic_id=uuid.UUID(int=1), partitions=(part,))
    return joined(
        encode_response(
            header, fetch_response.FetchResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, responses=(topic,))
        )
    )


@pytest.mark.parametrize("version", [4, 11, 12, 13, 17, 18])
def test_a_message_owns_its_records_when_the_next_takes_the_memory_of_its_frame(version: int) -> None:
    connection = ready(fetch=VersionRange(version, version))
    found = []
    for content in (b"a", b"b", b"c"):
        frame = joined(connection.send(content, Api.FETCH, fetch(uuid.UUID(int=1))))
        header, _ = decode_request(frame[4:])
        responses, _ = receive(connection, fetched(header, content * 200_000))
        found += responses
    assert [set(item.message.responses[0].partitions[0].records) for item in found] == [{97}, {98}, {99}]


def test_a_message_owns_its_strings_too() -> None:
    connection = ready(find_coordinator=VersionRange(0, 6))
    found = []
    for letter in "abc":
        request = find_coordinator_request.FindCoordinatorRequest(coordinator_keys=("g",))
        header, _ = decode_request(joined(connection.send(letter, Api.FIND_COORDINATOR, request))[4:])
        entries = tuple(
            find_coordinator_response.Coordinator(
                key=letter * 20_000, node_id=1, host="h", port=1, error_code=ErrorCode.none, error_message=None
            )
            for _ in range(5)
        )
        message = find_coordinator_response.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=entries)
        responses, _ = receive(connection, joined(encode_response(header, message)))
        found += responses
    assert [set(item.message.coordinators[0].key) for item in found] == [{"a"}, {"b"}, {"c"}]


def test_topics_without_an_id_need_a_version_with_names() -> None:
    connection = ready(fetch=VersionRange(4, 18))
    assert connection.version_for(Api.FETCH, fetch(None)) == 12
    assert connection.version_for(Api.FETCH, fetch(uuid.uuid4())) == 18


def test_an_offset_fetch_of_all_topics_uses_a_version_with_names() -> None:
    connection = ready(offset_fetch=VersionRange(1, 10))
    everything = offset_fetch_request.OffsetFetchRequestGroup(group_id="g", topics=None)
    nothing = offset_fetch_request.OffsetFetchRequestGroup(group_id="g", topics=())
    assert connection.version_for(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=(everything,))) == 9
    assert connection.version_for(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=(nothing,))) == 10


def test_an_http_server_is_not_kafka() -> None:
    connection = ClientConnection("me")
    connection.start()
    with pytest.raises(ProtocolError, match="announces"):
        receive(connection, b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_pattern_needs_a_version_with_patterns() -> None:
    message = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, subscribed_topic_regex="t.*", topic_partitions=()
    )
    assert ready(consumer_group_heartbeat=VersionRange(0, 1)).version_for(Api.CONSUMER_GROUP_HEARTBEAT, message) == 1
    with pytest.raises(UnsupportedApiError, match=r"up to version 0.*a member can subscribe to a pattern"):
        ready(consumer_group_heartbeat=VersionRange(0, 0)).version_for(Api.CONSUMER_GROUP_HEARTBEAT, message)


def test_old_brokers_need_the_numbers_of_partitions_and_replicas() -> None:
    def wanted(partitions: int, replicas: int) -> create_topics_request.CreateTopicsRequest:
        topic = create_topics_request.CreatableTopic(
            name="t", num_partitions=partitions, replication_factor=replicas, assignments=(), configs=()
        )
        return create_topics_request.CreateTopicsRequest(topics=(topic,), timeout=duration(1_000), validate_only=False)

    old, newer = ready(create_topics=VersionRange(0, 3)), ready(create_topics=VersionRange(0, 4))
    assert old.version_for(Api.CREATE_TOPICS, wanted(1, 1)) == 3
    assert newer.version_for(Api.CREATE_TOPICS, wanted(-1, -1)) == 4
    for unsaid in (wanted(-1, 1), wanted(1, -1)):
        with pytest.raises(UnsupportedApiError, match="give the number of partitions and of replicas"):
            old.version_for(Api.CREATE_TOPICS, unsaid)


@pytest.mark.parametrize(("codec", "newest"), [("lz4", 5), ("zstd", None)])
def test_old_brokers_do_not_know_zstd(codec: str, newest: int | None) -> None:
    records = encode_batch([NewRecord(None, b"value")], compression=Compression[codec.upper()])
    partition = produce_request.PartitionProduceData(index=0, records=records)
    topic = produce_request.TopicProduceData(name="t", partition_data=(partition,))
    message = produce_request.ProduceRequest(transactional_id=None, acks=-1, timeout=duration(1_000), topic_data=(topic,))
    assert ready(produce=VersionRange(3, 7)).version_for(Api.PRODUCE, message) == 7
    old = ready(produce=VersionRange(0, 5))
    if newest is not None:
        assert old.version_for(Api.PRODUCE, message) == newest
        return
    with pytest.raises(UnsupportedApiError, match=r"up to version 5.*zstd.*set another compression_type"):
        old.version_for(Api.PRODUCE, message)


def test_finalized_features_are_read() -> None:
    connection = ClientConnection("me")
    header, _ = decode_request(joined(connection.start())[4:])
    feature = api_versions_response.FinalizedFeatureKey(name="group.version", max_version_level=1, min_version_level=1)
    message = api_versions_response.ApiVersionsResponse(
        error_code=ErrorCode.none, api_keys=(), throttle_time=NO_THROTTLE, finalized_features=(feature,)
    )
    receive(connection, joined(encode_response(header, message)))
    assert connection.features == {"group.version": 1}


def test_a_login_skips_unknown_tagged_fields() -> None:
    """The response header of ApiVersions has no tagged fields in any version; that of SaslAuthenticate has."""
    connection = ClientConnection("me", mechanism="PLAIN")
    asked, _ = decode_request(joined(connection.start())[4:])
    receive(
        connection,
        with_tags(versions_answer(asked, sasl_handshake=VersionRange(1, 1), sasl_authenticate=VersionRange(0, 2)), asked),
    )
    assert connection.take_challenge() is not None
    asked, _ = decode_request(joined(connection.respond(SaslResponse(None, b"secret")))[4:])
    offered = sasl_handshake_response.SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=("PLAIN",))
    _, out = receive(connection, joined(encode_response(asked, offered)))
    asked, _ = decode_request(joined(out)[4:])
    assert (asked.api, asked.version) == (Api.SASL_AUTHENTICATE, 2)
    accepted = sasl_authenticate_response.SaslAuthenticateResponse(error_code=ErrorCode.none, error_message=None, auth_bytes=b"")
    receive(connection, with_tags(joined(encode_response(asked, accepted)), asked))
    assert connection.take_challenge() is not None
    connection.respond(SaslResponse(None, None))
    assert connection.state is ConnectionState.READY


def with_tags(answer: bytes, asked: RequestHeader) -> bytes:
    """A response with an unknown field in each section."""
    tagged = tagged_answer(answer[4:], asked.api, asked.version)
    assert tagged != answer[4:]
    return struct.pack(">i", len(tagged)) + tagged
