"""Records of ``__consumer_offsets``: the bytes of a real Kafka, round trips of every value, and invalid bytes."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ottla.errors import ProtocolError
from ottla.protocol.group_records import (
    RECORD_TYPES,
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    Unknown,
    decode_record,
    encode_record,
)
from ottla.protocol.messages import consumer_group_heartbeat_request as heartbeat
from tests.property.group_records import (
    consumer_group_records,
    group_keys,
    group_values,
    int64,
    member_values,
    offset_keys,
    offset_values,
    text,
)

limited_offset_values = st.builds(
    OffsetCommitValue, offset=int64, metadata=text, commit_timestamp=int64, expire_timestamp=int64.filter(lambda at: at != -1)
)
OF_KAFKA = json.loads(Path(__file__).with_name("kafka_consumer_offsets.json").read_text())
"""Records that Apache Kafka 4.3.1 wrote."""


def bytes_of(one: dict[str, str]) -> tuple[bytes, bytes | None]:
    return bytes.fromhex(one["key_hex"]), None if one["value_hex"] is None else bytes.fromhex(one["value_hex"])


@pytest.mark.parametrize("one", OF_KAFKA, ids=lambda one: one["meaning"][:50])
def test_kafka_s_records_are_read_and_rewritten_byte_for_byte(one: dict[str, str]) -> None:
    key, value = decode_record(*bytes_of(one))
    if isinstance(key, Unknown):
        assert value is None
    else:
        assert encode_record(key, value) == bytes_of(one)


def test_an_offset_with_an_expire_timestamp_cannot_have_newer_fields() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=0)
    value = OffsetCommitValue(offset=42, metadata="note", commit_timestamp=1795256642637, expire_timestamp=1795260242637)
    assert decode_record(*encode_record(key, value)) == (key, value)
    with pytest.raises(ProtocolError, match="version 1 has no leader_epoch"):
        encode_record(key, dataclasses.replace(value, leader_epoch=3))


def test_the_fields_of_a_group_that_kafka_wrote() -> None:
    record = next(one for one in OF_KAFKA if "one dynamic member" in one["meaning"])
    key, value = decode_record(*bytes_of(record))
    assert key == GroupMetadataKey(group="g-eager")
    assert isinstance(value, GroupMetadataValue)
    assert (value.protocol_type, value.generation, value.protocol) == ("consumer", 1, "range")
    (member,) = value.members
    assert member.member_id == value.leader == "A-4878d2e7-e1e7-4a2b-8d86-d336e43d46f8"
    assert (member.client_id, member.client_host) == ("A", "/127.0.0.1")
    assert (member.rebalance_timeout, member.session_timeout) == (300_000, 6_000)
    assert member.subscription.startswith(b"\0\3\0\0\0\1\0\6orders")


@given(offset_keys, st.none() | offset_values | limited_offset_values)
def test_an_offset_survives(key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
    assert decode_record(*encode_record(key, value)) == (key, value)


@given(group_keys, st.none() | group_values)
def test_a_group_survives(key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    assert decode_record(*encode_record(key, value)) == (key, value)


@given(consumer_group_records)
def test_a_record_of_a_consumer_group_survives(record: tuple[Any, Any]) -> None:
    key, value = record
    assert decode_record(*encode_record(key, value)) == (key, value)


def test_a_member_without_the_tag_is_one_of_the_classic_protocol() -> None:
    """As in Kafka, the tag's default is an empty structure, not null."""
    key, value = encode_record(ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"), ConsumerGroupMemberMetadataValue())
    assert value is not None
    assert value.endswith(b"\1\0\1\0")
    _, decoded = decode_record(key, value.removesuffix(b"\1\0\1\0") + b"\0")
    assert decoded == ConsumerGroupMemberMetadataValue(classic_member_metadata=ClassicMemberMetadata())


def test_topic_metadata_of_older_brokers_is_skipped() -> None:
    assert decode_record(b"\0\4\0\1g", b"\0\0whatever") == (ConsumerGroupPartitionMetadataKey(group_id="g"), None)


@given(
    st.integers(3, 2**15 - 1).filter(lambda one: one not in RECORD_TYPES),
    st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
)
def test_unknown_types_are_skipped(key_type: int, key: bytes, value: bytes | None) -> None:
    assert decode_record(struct.pack(">h", key_type) + key, value) == (Unknown(key_type), None)


@given(st.integers(0, 2), st.binary(max_size=30), st.integers(-1, 5), st.binary(max_size=60))
def test_any_bytes_are_a_record_or_a_protocol_error(key_type: int, key: bytes, version: int, value: bytes) -> None:
    good_key = b"\0\1g" if key_type == 2 else b"\0\1g\0\1t\0\0\0\0"
    for tail in (key, good_key):
        try:
            decoded_key, decoded = decode_record(struct.pack(">h", key_type) + tail, struct.pack(">h", version) + value)
        except ProtocolError:
            continue
        assert decoded is not None
        assert 0 <= version <= 4
        assert dataclasses.asdict(decoded)
        assert dataclasses.asdict(decoded_key)


@given(st.sampled_from([3, 5, 6, 7, 8, 16]), st.integers(-1, 1), st.binary(max_size=60))
def test_any_bytes_are_a_record_of_a_consumer_group_or_a_protocol_error(key_type: int, version: int, value: bytes) -> None:
    key = b"\0\1g" if key_type in (3, 6) else b"\0\1g\0\1m"
    try:
        _, decoded = decode_record(struct.pack(">h", key_type) + key, struct.pack(">h", version) + value)
    except ProtocolError:
        return
    assert version == 0
    assert dataclasses.asdict(decoded)


@given(member_values)
def test_every_cut_of_a_member_is_refused(member: ConsumerGroupMemberMetadataValue) -> None:
    key, value = encode_record(ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"), member)
    assert value is not None
    for cut in [*(value[:size] for size in range(len(value))), value + b"\0"]:
        with pytest.raises(ProtocolError):
            decode_record(key, cut)


@given(group_values)
def test_every_cut_and_every_byte_too_many_is_refused(group: GroupMetadataValue) -> None:
    key, value = encode_record(GroupMetadataKey(group="g"), group)
    assert value is not None
    for cut in [*(value[:size] for size in range(len(value))), value + b"\0"]:
        with pytest.raises(ProtocolError):
            decode_record(key, cut)


NO_BYTES = "00000000"
GROUP_VERSIONS = {
    0: "0000 0001 63 00000007 ffff ffff 00000001 0001 6d 0000 0000 00000009" + 2 * NO_BYTES,
    1: "0001 0001 63 00000007 ffff ffff 00000001 0001 6d 0000 0000 00000008 00000009" + 2 * NO_BYTES,
    2: "0002 0001 63 00000007 ffff ffff 0000000000000005 00000001 0001 6d 0000 0000 00000008 00000009" + 2 * NO_BYTES,
    4: "0004 02 63 00000007 00 00 0000000000000005 02 02 6d 00 01 01 00000008 00000009 01 01 00 00",
}
"""A group of type "c", generation 7, with one member "m", in versions that Kafka no longer writes or does not write yet."""


@pytest.mark.parametrize("version", GROUP_VERSIONS)
def test_other_versions_of_a_group_are_read(version: int) -> None:
    _, value = decode_record(b"\0\2\0\1g", bytes.fromhex(GROUP_VERSIONS[version]))
    assert isinstance(value, GroupMetadataValue)
    assert (value.protocol_type, value.generation, value.leader) == ("c", 7, None)
    assert value.current_state_timestamp == (5 if version >= 2 else -1)
    (member,) = value.members
    assert (member.member_id, member.rebalance_timeout, member.session_timeout) == ("m", 8 if version >= 1 else 0, 9)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000" + "000000000000002a" + "000178" + "0000000000000005", (42, -1, "x", 5)),
        ("0002" + "000000000000002a" + "000178" + "0000000000000005", (42, -1, "x", 5)),
        ("0003" + "000000000000002a" + "00000003" + "000178" + "0000000000000005", (42, 3, "x", 5)),
    ],
    ids=["version 0", "version 2", "version 3"],
)
@pytest.mark.parametrize("key_type", [0, 1])
def test_other_versions_of_an_offset_are_read(key_type: int, value: str, expected: tuple[object, ...]) -> None:
    key, decoded = decode_record(struct.pack(">h", key_type) + b"\0\1g\0\1t\0\0\0\1", bytes.fromhex(value))
    assert key == OffsetCommitKey(group="g", topic="t", partition=1)
    assert isinstance(decoded, OffsetCommitValue)
    assert (decoded.offset, decoded.leader_epoch, decoded.metadata, decoded.commit_timestamp) == expected


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\2", b"\0\2\0\5ab", b"\0\2\xff\xff", b"\0\2\0\1g\0"])
def test_bad_keys_are_refused(key: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_record(key, None)


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ProtocolError, match="cannot be encoded"):
        encode_record(OffsetCommitKey(group="g", topic="t", partition=2**31), None)


def test_an_array_with_an_excessive_count_is_refused() -> None:
    """kio would first reserve memory for the announced count, and end the process."""
    with pytest.raises(ProtocolError, match="announces 2147483647 items"):
        decode_record(b"\0\2\0\1g", b"\0\3\0\0\0\0\0\1\xff\xff\xff\xff" + bytes(8) + b"\x7f\xff\xff\xff")


def test_a_classic_member_with_client_assignors_survives() -> None:
    """No member has both; two tagged fields are read and written all the same."""
    key = ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    for classic in (None, ClassicMemberMetadata(), ClassicMemberMetadata(session_timeout_ms=5)):
        value = ConsumerGroupMemberMetadataValue(
            classic_member_metadata=classic, client_assignors=(heartbeat.ClientAssignor(name="mine"),)
        )
        assert decode_record(*encode_record(key, value)) == (key, value)
