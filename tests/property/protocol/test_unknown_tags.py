"""Unknown tagged fields are skipped (KIP-482) in every structure, and other values that only Kafka accepts are read."""

from __future__ import annotations

import dataclasses
import io
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from kio.serial import entity_writer

from ottla.errors import ProtocolError
from ottla.protocol import reading
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import decode_request, decode_response
from ottla.protocol.consumer_protocol import decode_assignment, decode_subscription
from ottla.protocol.conversion import wire_class
from ottla.protocol.group_records import RECORD_TYPES, ConsumerGroupMemberMetadataKey, decode_record, encode_key
from ottla.protocol.transaction_records import (
    TopicPartitions,
    TransactionLogValue,
    decode_record as decode_transaction,
    encode_record as encode_transaction,
)
from tests.example_counts import examples
from tests.property.group_records import (
    consumer_group_records,
    group_keys,
    group_values,
    int32,
    int64,
    member_values,
    offset_keys,
    offset_values,
    text,
)
from tests.property.protocol.versions import EVERY, NAMES
from tests.unknown_tagged_fields import encode, one_tag, some_tags

pytestmark = pytest.mark.slow

FLEXIBLE = [
    (api, version, side)
    for api, (low, high) in SPOKEN.items()
    for version in range(low, high + 1)
    for side in ("request", "response")
    if wire_class(api, version, side).__flexible__
]
NAMES_OF_FLEXIBLE = [f"{api.name.lower()}-{version}-{side}" for api, version, side in FLEXIBLE]


def no_tags(known: frozenset[int]) -> list[tuple[int, bytes]]:
    return []


def frame_of(api: Api, version: int, side: str, body: Any, tagging: Any) -> bytes:
    head: Any = type(body).__header_schema__
    if side == "response":
        return encode(head(correlation_id=7), tagging) + encode(body, tagging)
    known = {"request_api_key": int(api), "request_api_version": version, "correlation_id": 7, "client_id": "me"}
    return encode(head(**{field.name: known[field.name] for field in dataclasses.fields(head)}), tagging) + encode(body, tagging)


def decoded(api: Api, version: int, side: str, frame: bytes) -> Any:
    return decode_request(frame) if side == "request" else decode_response(api, version, frame)


@pytest.mark.parametrize(("api", "version"), EVERY, ids=NAMES)
@settings(max_examples=examples(2))
@given(data=st.data())
def test_the_writer_of_these_tests_equals_that_of_kio(api: Api, version: int, data: st.DataObject) -> None:
    for side in ("request", "response"):
        body = data.draw(st.from_type(wire_class(api, version, side)))
        target = io.BytesIO()
        entity_writer(type(body))(target, body)
        assert encode(body, no_tags) == target.getvalue()


@pytest.mark.parametrize(("api", "version", "side"), FLEXIBLE, ids=NAMES_OF_FLEXIBLE)
@settings(max_examples=examples(4))
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_unknown_tags_change_nothing_in_any_message(api: Api, version: int, side: str, data: st.DataObject, seed: int) -> None:
    body = data.draw(st.from_type(wire_class(api, version, side)))
    plain = frame_of(api, version, side, body, no_tags)
    wanted = decoded(api, version, side, plain)
    for tagging in (one_tag, some_tags(random.Random(seed))):
        frame = frame_of(api, version, side, body, tagging)
        assert decoded(api, version, side, frame) == wanted
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "MIN_FRAME_SIZE", 0)
            assert decoded(api, version, side, frame) == wanted
            if side == "response":
                with pytest.raises(ProtocolError):
                    decoded(api, version, side, frame[: data.draw(st.integers(0, len(frame) - 1))])


transactions = st.builds(
    TransactionLogValue,
    producer_id=int64,
    previous_producer_id=int64,
    next_producer_id=int64,
    producer_epoch=st.integers(-1, 2**15 - 1),
    transaction_timeout_ms=int32,
    transaction_status=st.integers(0, 7),
    transaction_partitions=st.none()
    | st.lists(st.builds(TopicPartitions, topic=text, partition_ids=st.lists(int32, max_size=2).map(tuple)), max_size=2).map(tuple),
    transaction_last_update_timestamp_ms=int64,
    transaction_start_timestamp_ms=int64,
    client_transaction_version=st.integers(0, 2),
)


@settings(max_examples=examples(200))
@given(
    consumer_group_records | st.tuples(offset_keys, offset_values) | st.tuples(group_keys, group_values),
    st.integers(0, 2**32),
)
def test_unknown_tags_change_nothing_in_a_record_of_a_group(record: tuple[Any, Any], seed: int) -> None:
    key, value = record
    if value is None:
        return
    newest = next(kind.newest for kind in RECORD_TYPES.values() if kind.value is type(value))
    for tagging in (one_tag, some_tags(random.Random(seed))):
        tagged = struct.pack(">h", newest) + encode(value, tagging, version=newest, flexible=True)
        assert decode_record(encode_key(key), tagged) == (key, value)


@settings(max_examples=examples(200))
@given(member_values, st.integers(0, 100), st.integers(0, 2**32))
def test_a_record_with_unknown_tags_that_is_cut_off_is_refused(value: Any, cut: int, seed: int) -> None:
    key = encode_key(ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"))
    tagged = b"\0\0" + encode(value, some_tags(random.Random(seed)), version=0, flexible=True)
    with pytest.raises(ProtocolError):
        decode_record(key, tagged[: cut % len(tagged)])


@given(transactions, st.integers(0, 2**32))
def test_unknown_tags_change_nothing_in_a_record_of_a_transaction(value: TransactionLogValue, seed: int) -> None:
    key, _ = encode_transaction("id", None)
    tagged = b"\0\1" + encode(value, some_tags(random.Random(seed)), version=1, flexible=True)
    assert decode_transaction(key, tagged) == ("id", value)


# The expected values are those that the classes of Apache Kafka 4.3.1 read from these bytes.

HEARTBEAT_ANSWER = struct.pack(">iBih", 7, 0, 0, 0)
"""A response header and a HeartbeatResponse of version 4 up to its tagged fields."""


@pytest.mark.parametrize(
    "section",
    ["02 05 01aa 05 01bb", "02 07 01aa 05 00", "01 8080808008 01aa", "01 8080808010 01aa", "81808000 05 8180808000 aa"],
    ids=["twice", "out of order", "the tag 2**31", "the tag 2**32", "numbers longer than needed"],
)
def test_sections_that_kafka_reads_are_read(section: str) -> None:
    correlation_id, message = decode_response(Api.HEARTBEAT, 4, HEARTBEAT_ANSWER + bytes.fromhex(section))
    assert (correlation_id, message.error_code) == (7, 0)


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("01 07 05aa", "truncated at byte 15"),
        ("01 05 ffffffff0f", "truncated"),
        ("02 05 00", "truncated"),
        ("ffffffff0f", "truncated"),
        ("01 808080808001 01aa", "longer than five bytes"),
        ("01 05 00 00", "ends at byte 14 of a frame of 15 bytes"),
    ],
    ids=["a size beyond the end", "an absurd size", "a field that is missing", "an absurd count", "a long tag", "bytes left over"],
)
def test_sections_that_are_malformed_are_refused(section: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode_response(Api.HEARTBEAT, 4, HEARTBEAT_ANSWER + bytes.fromhex(section))


API_VERSIONS_ANSWER = struct.pack(">ihBi", 7, 0, 1, 0)


@pytest.mark.parametrize(
    "section",
    ["02 01 03 0000000000000007 03 09 02", "02 01 08 0000000000000005 01 08 0000000000000007", "02 09 00 01 01 0000000000000007"],
    ids=["sizes that lie", "twice", "a size that lies behind an unknown tag"],
)
def test_a_known_tag_is_read_whatever_its_size(section: str) -> None:
    _, message = decode_response(Api.API_VERSIONS, 3, API_VERSIONS_ANSWER + bytes.fromhex(section))
    assert message.finalized_features_epoch == 7


def test_an_array_after_a_wrong_size_is_checked_where_kio_reads_it() -> None:
    """Tag 1 announces eight bytes more than it has; there an array of tag 0 announces 2**31 items."""
    section = bytes.fromhex("02 01 10 0000000000000007 00 05 ffffffff07 0000")
    with pytest.raises(ProtocolError, match="announces 2147483646 items"):
        decode_response(Api.API_VERSIONS, 3, API_VERSIONS_ANSWER + section)


def request_of(api: Api, version: int, body: str, *, client_id: str = "0002 6d65") -> bytes:
    return struct.pack(">hhi", api, version, 1) + bytes.fromhex(client_id) + bytes.fromhex(body)


def test_text_that_is_not_utf_8_is_read_as_java_reads_it() -> None:
    header, message = decode_request(request_of(Api.HEARTBEAT, 0, "0002 61ff 00000001 0003 e28241", client_id="0002 6dff"))
    assert header.client_id == "m\ufffd"
    assert (message.group_id, message.member_id) == ("a\ufffd", "\ufffdA")
    _, message = decode_request(request_of(Api.HEARTBEAT, 4, "00 03 61ff 00000001 04 e28241 00 00", client_id="0002 6dff"))
    assert (message.group_id, message.member_id) == ("a\ufffd", "\ufffdA")


def test_any_negative_length_is_null() -> None:
    _, message = decode_request(request_of(Api.HEARTBEAT, 3, "0000 00000001 0000 fff0"))
    assert message.group_instance_id is None
    _, message = decode_request(request_of(Api.METADATA, 1, "fffffffb"))
    assert message.topics is None
    with pytest.raises(ProtocolError):
        decode_request(request_of(Api.HEARTBEAT, 0, "fffe 00000001 0000"))


def test_any_byte_but_0_is_true() -> None:
    _, message = decode_request(request_of(Api.METADATA, 4, "00000000 02"))
    assert message.allow_auto_topic_creation is True


def test_any_negative_byte_is_a_null_structure() -> None:
    front = struct.pack(">iB", 7, 0) + bytes.fromhex("00000000 0000 00 00 00000001 00000005")
    _, message = decode_response(Api.CONSUMER_GROUP_HEARTBEAT, 0, front + b"\x80\0")
    assert message.assignment is None
    _, message = decode_response(Api.CONSUMER_GROUP_HEARTBEAT, 0, front + b"\x7f\1\0\0")
    assert message.assignment.topic_partitions == ()


def test_member_blobs_with_excessive_counts_are_refused() -> None:
    """kio would first reserve memory for the announced count, and end the process."""
    with pytest.raises(ProtocolError, match="announces 2147483647 items"):
        decode_subscription(b"\0\3\x7f\xff\xff\xff")
    with pytest.raises(ProtocolError, match="announces 2147483647 items"):
        decode_assignment(b"\0\3\x7f\xff\xff\xff")
