"""Encoding and decoding of whole requests and responses: versions, errors, and bytes left over."""

from __future__ import annotations

import struct

import pytest

from ottla.errors import ProtocolError, UnsupportedApiError
from ottla.protocol import NO_THROTTLE, ErrorCode, duration
from ottla.protocol.apis import Api, VersionRule
from ottla.protocol.codec import RequestHeader, decode_request, decode_response, encode_request, encode_response
from ottla.protocol.framing import Piece
from ottla.protocol.messages import (
    describe_transactions_response,
    fetch_response,
    find_coordinator_request,
    heartbeat_request,
    heartbeat_response,
    join_group_request,
    leave_group_response,
    metadata_request,
    offset_commit_request,
    offset_fetch_request,
    produce_response,
    sasl_authenticate_response,
)


def body_of(pieces: list[Piece]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces if isinstance(piece, bytes))[4:]


def request(api: Api, version: int, message: object) -> bytes:
    return body_of(encode_request(RequestHeader(api, version, 7, "me"), message))


HEARTBEAT = heartbeat_request.HeartbeatRequest(group_id="g", generation_id=3, member_id="m")


@pytest.mark.parametrize("version", range(5))
def test_a_request_keeps_its_header_and_body(version: int) -> None:
    header, message = decode_request(request(Api.HEARTBEAT, version, HEARTBEAT))
    assert header == RequestHeader(Api.HEARTBEAT, version, 7, "me")
    assert message == HEARTBEAT


def test_bytes_left_over_are_refused_in_a_response_and_ignored_in_a_request() -> None:
    response = heartbeat_response.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none)
    frame = body_of(encode_response(RequestHeader(Api.HEARTBEAT, 4, 7, "me"), response))
    with pytest.raises(ProtocolError, match=r"HEARTBEAT response version 4 ends at byte 12 of a frame of 13 bytes"):
        decode_response(Api.HEARTBEAT, 4, frame + b"\0")
    assert decode_request(request(Api.HEARTBEAT, 4, HEARTBEAT) + b"\0")[1] == HEARTBEAT


def test_every_cut_is_refused() -> None:
    frame = request(Api.HEARTBEAT, 4, HEARTBEAT)
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_request(frame[:size])


@pytest.mark.parametrize(
    ("key", "version", "why"),
    [(999, 0, "API key 999"), (12, 5, r"HEARTBEAT version 5 .* only 0 to 4"), (0, 2, "PRODUCE version 2")],
)
def test_unsupported_apis_and_versions_are_refused_by_name(key: int, version: int, why: str) -> None:
    with pytest.raises(UnsupportedApiError, match=why):
        decode_request(struct.pack(">hhih", key, version, 1, -1))


@pytest.mark.parametrize("count", [1_000_000, 2**31 - 1])
def test_an_array_with_a_false_length_is_refused_before_memory_is_reserved(count: int) -> None:
    frame = struct.pack(">hhih", Api.METADATA, 1, 1, -1) + struct.pack(">i", count)
    with pytest.raises(ProtocolError, match=f"announces {count} items, 0 bytes are left"):
        decode_request(frame)


def test_a_compact_array_with_a_false_length_is_refused() -> None:
    frame = struct.pack(">hhih", Api.METADATA, 9, 1, -1) + b"\0" + b"\xff\xff\xff\xff\x0f"
    with pytest.raises(ProtocolError, match="announces"):
        decode_request(frame)


def test_join_group_0_has_one_timeout_for_both() -> None:
    message = join_group_request.JoinGroupRequest(
        group_id="g", session_timeout=duration(6000), member_id="", protocol_type="consumer", protocols=()
    )
    _, upgraded = decode_request(request(Api.JOIN_GROUP, 0, message))
    assert upgraded.rebalance_timeout == duration(6000)


def test_metadata_0_asks_for_all_topics_with_an_empty_list() -> None:
    message = metadata_request.MetadataRequest(topics=(), include_topic_authorized_operations=False)
    _, upgraded = decode_request(request(Api.METADATA, 0, message))
    assert upgraded.topics is None
    _, upgraded = decode_request(request(Api.METADATA, 1, message))
    assert upgraded.topics == ()


def test_find_coordinator_had_one_key() -> None:
    message = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",))
    for version in (0, 3, 4, 6):
        _, upgraded = decode_request(request(Api.FIND_COORDINATOR, version, message))
        assert upgraded.coordinator_keys == ("g",)


def test_offset_fetch_had_one_group() -> None:
    topics = offset_fetch_request.OffsetFetchRequestTopics(name="t", partition_indexes=(0, 1))
    group = offset_fetch_request.OffsetFetchRequestGroup(group_id="g", topics=(topics,))
    message = offset_fetch_request.OffsetFetchRequest(groups=(group,), require_stable=True)
    for version in range(1, 10):
        _, upgraded = decode_request(request(Api.OFFSET_FETCH, version, message))
        assert upgraded.groups[0].group_id == "g"
        assert upgraded.groups[0].topics == (topics,)
        assert upgraded.require_stable == (version >= 7)


def test_leave_group_had_one_error() -> None:
    member = leave_group_response.MemberResponse(member_id="m", group_instance_id=None, error_code=ErrorCode.unknown_member_id)
    message = leave_group_response.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, members=(member,))
    frame = body_of(encode_response(RequestHeader(Api.LEAVE_GROUP, 1, 5, None), message))
    _, upgraded = decode_response(Api.LEAVE_GROUP, 1, frame)
    assert upgraded.error_code == ErrorCode.unknown_member_id


class Range:
    def __len__(self) -> int:
        return 100


def test_records_may_stay_in_a_file() -> None:
    records = Range()
    partition = fetch_response.PartitionData(
        partition_index=0,
        error_code=ErrorCode.none,
        high_watermark=1,
        aborted_transactions=None,
        records=records,  # type: ignore[arg-type]
    )
    topic = fetch_response.FetchableTopicResponse(topic="t", partitions=(partition,))
    message = fetch_response.FetchResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, session_id=0, responses=(topic,))
    for version in (4, 12, 18):
        pieces = encode_response(RequestHeader(Api.FETCH, version, 5, None), message)
        assert records in pieces
        announced = struct.unpack(">i", pieces[0][:4])[0]  # type: ignore[index]
        assert announced == sum(len(piece) for piece in pieces) - 4


def test_version_rules_follow_from_the_version() -> None:
    assert VersionRule.NEEDS_MEMBER_ID not in RequestHeader(Api.JOIN_GROUP, 3, 1, None).version_rules
    assert VersionRule.NEEDS_MEMBER_ID in RequestHeader(Api.JOIN_GROUP, 4, 1, None).version_rules


def test_encoding_errors_name_the_message() -> None:
    broken = heartbeat_request.HeartbeatRequest(group_id="g" * 40_000, generation_id=3, member_id="m")
    with pytest.raises(ProtocolError, match="HEARTBEAT request version 0 cannot be encoded"):
        encode_request(RequestHeader(Api.HEARTBEAT, 0, 1, None), broken)


def test_an_unknown_error_code_is_an_unknown_server_error() -> None:
    frame = struct.pack(">iBihB", 7, 0, 0, 4321, 0)
    correlation_id, message = decode_response(Api.HEARTBEAT, 4, frame)
    assert (correlation_id, message.error_code) == (7, ErrorCode.unknown_server_error)


LONG_NUMBERS = [0, 1, -1, -2, 2**53 + 1, 2**56 + 1, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("milliseconds", LONG_NUMBERS)
def test_any_retention_time_survives(version: int, milliseconds: int) -> None:
    message = offset_commit_request.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=1, member_id="m", retention_time_ms=milliseconds, topics=()
    )
    frame = request(Api.OFFSET_COMMIT, version, message)
    assert milliseconds.to_bytes(8, "big", signed=True) in frame
    assert decode_request(frame)[1].retention_time_ms == milliseconds


@pytest.mark.parametrize("milliseconds", LONG_NUMBERS)
def test_any_other_time_of_64_bits_survives(milliseconds: int) -> None:
    login = sasl_authenticate_response.SaslAuthenticateResponse(
        error_code=ErrorCode.none, error_message=None, auth_bytes=b"", session_lifetime_ms=milliseconds
    )
    transaction = describe_transactions_response.TransactionState(
        error_code=ErrorCode.none,
        transactional_id="id",
        transaction_state="Ongoing",
        transaction_timeout=duration(1),
        transaction_start_time_ms=milliseconds,
        producer_id=1,
        producer_epoch=1,
        topics=(),
    )
    described = describe_transactions_response.DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE, transaction_states=(transaction,)
    )
    partition = produce_response.PartitionProduceResponse(
        index=0, error_code=ErrorCode.none, base_offset=1, log_append_time_ms=milliseconds, record_errors=()
    )
    topic = produce_response.TopicProduceResponse(name="t", partition_responses=(partition,))
    produced = produce_response.ProduceResponse(responses=(topic,))
    for api, version, message in (
        (Api.SASL_AUTHENTICATE, 2, login),
        (Api.DESCRIBE_TRANSACTIONS, 0, described),
        (Api.PRODUCE, 9, produced),
    ):
        frame = body_of(encode_response(RequestHeader(api, version, 5, None), message))
        assert decode_response(api, version, frame)[1] == message


@pytest.mark.parametrize("milliseconds", [0, 1, -1, 999, 2**31 - 1, -(2**31)])
def test_any_duration_of_32_bits_survives(milliseconds: int) -> None:
    message = join_group_request.JoinGroupRequest(
        group_id="g",
        session_timeout=duration(milliseconds),
        rebalance_timeout=duration(milliseconds),
        member_id="",
        protocol_type="consumer",
        protocols=(),
    )
    for version in range(1, 10):
        assert decode_request(request(Api.JOIN_GROUP, version, message))[1] == message
