"""The accepted forms of a partition, an offset, a time; the errors for other values name the value and the expected form."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ottla import AsyncConsumer, Consumer, GroupMembershipOperation, OffsetAndMetadata, TopicPartition, arguments
from ottla.errors import ConfigError

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: arguments.milliseconds("5", 0), TypeError, "timeout must be a number of seconds or a timedelta, not '5'"),  # type: ignore[arg-type]
        (lambda: arguments.milliseconds(True, 0), TypeError, "not True"),
        (lambda: arguments.milliseconds(float("nan"), 0), ValueError, "not a number"),
        (lambda: arguments.milliseconds(-1, 0), ValueError, "negative: -1"),
        (lambda: arguments.topics([1], None), TypeError, "string, not 1"),  # type: ignore[list-item]
        (lambda: arguments.topics([""], None), ValueError, "empty"),
        (lambda: arguments.topics([], 5), TypeError, "pattern must be a string, not 5"),  # type: ignore[arg-type]
        (lambda: arguments.partition("t"), TypeError, "partition must be a TopicPartition, not 't'"),
        (lambda: arguments.partition(("t", True)), TypeError, "TopicPartition"),
        (lambda: arguments.partition(("t", -1)), ValueError, r"partition, .'t', -1., is negative: -1"),
        (lambda: arguments.partitions(("t",)), TypeError, "not 't'"),  # type: ignore[arg-type]
        (lambda: arguments.partitions((3,)), TypeError, "not 3"),  # type: ignore[arg-type]
        (lambda: arguments.position(True), TypeError, "offset must be a whole number"),
        (lambda: arguments.position("5"), TypeError, "not '5'"),  # type: ignore[arg-type]
        (lambda: arguments.position(OffsetAndMetadata("5")), TypeError, "whole number"),  # type: ignore[arg-type]
        (
            lambda: arguments.position(OffsetAndMetadata(5, leader_epoch="1")),  # type: ignore[arg-type]
            TypeError,
            "the leader epoch of offset must be a whole number, not '1'",
        ),
        (lambda: arguments.position(OffsetAndMetadata(5, leader_epoch=2**31)), ValueError, "to 2147483647, not 2147483648"),
        (lambda: arguments.offsets([TP]), TypeError, "by partition"),  # type: ignore[arg-type]
        (lambda: arguments.timestamps({TP: datetime.now(UTC)}), TypeError, "milliseconds since 1970"),  # type: ignore[dict-item]
        (lambda: arguments.timestamps({TP: -1}), ValueError, "is negative"),
        (lambda: arguments.timestamps(TP), TypeError, "by partition"),  # type: ignore[arg-type]
        (lambda: arguments.group_membership("stay"), ValueError, "'default', 'leave_group', 'remain_in_group'"),
        (lambda: arguments.callback("f", "on_assign"), TypeError, "on_assign must be callable"),
        *(
            (
                lambda values=values: arguments.records(values),
                TypeError,
                r"records must be an iterable of values, or of pairs \(key, value\), not",
            )
            for values in ("abc", b"abc", bytearray(b"abc"), {"k": "v"}, None, 5)
        ),
    ],
)
def test_an_invalid_value_raises(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message.replace("{", "\\{")):
        call()


def test_accepted_forms() -> None:
    assert arguments.milliseconds(None, 7) == 7
    assert arguments.milliseconds(1.5, 0) == arguments.milliseconds(timedelta(milliseconds=1500), 0) == 1500
    assert arguments.milliseconds(float("inf"), 0) > 10**9
    assert arguments.partitions((TP, ("u", 1), {TopicPartition("v", 2)})) == [TP, ("u", 1), ("v", 2)]  # type: ignore[arg-type]
    assert arguments.position(5) == arguments.position(OffsetAndMetadata(5, leader_epoch=-7)) == OffsetAndMetadata(5)
    assert arguments.position(OffsetAndMetadata(5, "m", 2)) == OffsetAndMetadata(5, "m", 2)
    for given in (GroupMembershipOperation.LEAVE_GROUP, "leave_group", "LEAVE_GROUP"):
        assert arguments.group_membership(given) is GroupMembershipOperation.LEAVE_GROUP


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_settings_are_a_mapping(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"not 'localhost:9092'.*bootstrap_servers="):
        kind("localhost:9092")


def test_listeners_and_callbacks_are_checked_by_the_call() -> None:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g")
    with pytest.raises(TypeError, match="on_revoke"):
        consumer.subscribe(["t"], on_revoke="f")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callback"):
        consumer.commit_async({TP: 1}, callback=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="topic must be a string"):
        consumer.partitions_for(TP)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="group_membership must be one of"):
        consumer.close(group_membership="stay")
    consumer.close()
