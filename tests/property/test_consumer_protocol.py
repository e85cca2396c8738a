"""Subscription and Assignment blobs: every value survives a round trip, every byte string is a value or a ``ProtocolError``."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ottla.errors import ProtocolError
from ottla.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.types import TopicPartition

names = st.text(st.characters(codec="utf-8"), max_size=12)
user_data = st.none() | st.binary(max_size=20)
int32 = st.integers(0, 2**31 - 1)
generations = st.integers(-1, 2**31 - 1)


@st.composite
def partitions_by_topic(draw: st.DrawFn) -> tuple[TopicPartition, ...]:
    topics = draw(st.dictionaries(names, st.lists(int32, unique=True, min_size=1, max_size=4), max_size=4))
    return tuple(TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers)


subscriptions = st.builds(
    Subscription,
    topics=st.lists(names, max_size=5).map(tuple),
    user_data=user_data,
    owned=partitions_by_topic(),
    generation=generations,
    rack=st.none() | names,
)
assignments = st.builds(Assignment, partitions_by_topic(), user_data)


@given(subscriptions)
def test_a_subscription_survives(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(assignments)
def test_an_assignment_survives(assignment: Assignment) -> None:
    assert decode_assignment(encode_assignment(assignment)) == assignment


@given(subscriptions, st.integers(4, 2**15 - 1), st.binary(max_size=20))
def test_an_unknown_version_is_read_as_the_newest_known(subscription: Subscription, version: int, more: bytes) -> None:
    blob = struct.pack(">h", version) + encode_subscription(subscription)[2:] + more
    assert decode_subscription(blob) == subscription


@given(st.binary(max_size=60), st.integers(0, 4))
def test_any_bytes_are_a_value_or_a_protocol_error(content: bytes, version: int) -> None:
    blob = struct.pack(">h", version) + content
    codecs: list[tuple[Any, Any]] = [(decode_subscription, encode_subscription), (decode_assignment, encode_assignment)]
    for decode, encode in codecs:
        try:
            value = decode(blob)
        except ProtocolError:
            continue
        assert decode(encode(value)) == value


def test_bytes_of_apache_kafka() -> None:
    joined = bytes.fromhex("00030000000100066f7264657273ffffffff0000000000000001ffff")
    assert decode_subscription(joined) == Subscription(("orders",), generation=1)
    assert encode_subscription(Subscription(("orders",), generation=1)) == joined
    given_out = bytes.fromhex("00030000000100066f7264657273000000020000000200000003ffffffff")
    assert decode_assignment(given_out) == Assignment((TopicPartition("orders", 2), TopicPartition("orders", 3)))


@pytest.mark.parametrize(
    ("blob", "expected"),
    [
        ("0000000000010001610000000178", Subscription(("a",), b"x")),
        ("00010000000100016100000001780000000100016200000001" + "00000007", Subscription(("a",), b"x", (TopicPartition("b", 7),))),
        ("0002000000010001610000000178" + "00000000" + "00000005", Subscription(("a",), b"x", (), 5)),
    ],
    ids=["version 0", "version 1", "version 2"],
)
def test_older_versions_have_defaults(blob: str, expected: Subscription) -> None:
    assert decode_subscription(bytes.fromhex(blob)) == expected


@pytest.mark.parametrize(
    "blob",
    [
        "",
        "00",
        "ffff0000000000000000",
        "00037fffffff",
        "0003000000017fff61",
        "000300000001ffff",
        "0003ffffffff",
        "0000ffffffff00000000",
    ],
    ids=["empty", "half a version", "negative version", "lying count", "lying length", "null name", "cut off", "null topics"],
)
def test_inconsistent_blobs_are_refused(blob: str) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(bytes.fromhex(blob))


def test_an_empty_assignment_has_no_partitions() -> None:
    assert decode_assignment(b"") == Assignment(())
