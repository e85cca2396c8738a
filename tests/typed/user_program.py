"""A user's program for mypy and pyright: ``test_type_checkers`` checks it, and nothing runs it.

Each line with an error has an ``ignore`` comment for both checkers, which report an unused ``ignore``. So an error that a checker
no longer finds fails the test as well.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

from ottla import Admin, AsyncConsumer, Consumer, IsolationLevel, OAuthToken, Record, Records, TopicPartition, errors
from ottla.assignors import RangeAssignor
from ottla.errors import (
    OffsetOutOfRangeError,
    RecordDeserializationError,
    TopicAuthorizationFailedError as Forbidden,
)
from ottla.settings import AdminSettings, ConsumerSettings

BROKERS = "localhost:9092"


@dataclass
class Order:
    drink: str

    @classmethod
    def parse(cls, raw: bytes) -> Order:
        return cls(json.loads(raw)["drink"])


def lenient(raw: bytes | None) -> int:
    return 0 if raw is None else int(raw)


# -- the types of keys and values ------------------------------------------------------------------------------------------


def without_deserializers() -> None:
    with Consumer(bootstrap_servers=BROKERS, group_id="billing") as consumer:
        assert_type(consumer, Consumer[bytes, bytes])
        consumer.subscribe(["orders"])
        records = consumer.poll(1.0)
        assert_type(records, Records[bytes, bytes])
        assert_type(records[0], Record[bytes, bytes])
        assert_type(records[-2:], list[Record[bytes, bytes]])
        for record in consumer:
            assert_type(record.key, bytes | None)
            assert_type(record.value, bytes | None)
            record.value.decode()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
            record.value = b""  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def with_deserializers() -> None:
    consumer = Consumer(bootstrap_servers=BROKERS, key_deserializer=int, value_deserializer=Order.parse)
    assert_type(consumer, Consumer[int, Order])
    for record in consumer.poll(timedelta(seconds=1)):
        assert_type(record, Record[int, Order])
        assert_type(record.key, int | None)
        if record.value is not None:
            assert_type(record.value.drink, str)
            record.value.drink = 5  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    for split in consumer.poll(1).by_partition().values():
        assert_type(split, Records[int, Order])


def each_deserializer_by_itself() -> None:
    assert_type(Consumer(key_deserializer=bytes.decode), Consumer[str, bytes])
    assert_type(Consumer(value_deserializer=json.loads), Consumer[bytes, Any])
    assert_type(Consumer(value_deserializer=lenient, deserialize_nulls=True), Consumer[bytes, int])
    assert_type(Consumer(value_deserializer=None), Consumer[bytes, bytes])
    Consumer(value_deserializer=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(value_deserializer=str.encode)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def settings_in_a_mapping() -> None:
    consumer: Consumer[int, Order] = Consumer(
        {"bootstrap.servers": BROKERS, "key.deserializer": int}, value_deserializer=Order.parse
    )
    assert_type(consumer.poll()[0].key, int | None)


async def on_asyncio() -> AsyncIterator[Order]:
    async with AsyncConsumer(bootstrap_servers=BROKERS, group_id="billing", value_deserializer=Order.parse) as consumer:
        assert_type(consumer, AsyncConsumer[bytes, Order])
        await consumer.subscribe(["orders"], on_assign=on_assign_async)
        assert_type(await consumer.poll(1.0), Records[bytes, Order])
        async for record in consumer:
            assert_type(record, Record[bytes, Order])
            if record.value:
                yield record.value


# -- annotations ----------------------------------------------------------------------------------------------------------


def handle(record: Record) -> bytes | None:
    return record.value


def handle_order(record: Record[bytes, Order]) -> str:
    return record.value.drink if record.value else "gone"


def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    consumer.seek_to_beginning(*partitions)


def on_revoke(consumer: Consumer[Any, Order], partitions: list[TopicPartition]) -> None:
    consumer.commit()


async def on_assign_async(consumer: AsyncConsumer[Any, Order], partitions: list[TopicPartition]) -> None:
    await consumer.seek_to_end(*partitions)


def pass_on(consumer: Consumer[bytes, Order]) -> Iterator[str]:
    consumer.subscribe(["orders"], on_assign=on_assign, on_revoke=on_revoke)
    for record in consumer:
        yield handle_order(record)
        handle(record)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def records_of_tests() -> None:
    assert_type(Record("orders", 0, 7, b"k", Order("tea")), Record[bytes, Order])
    handle_order(Record("orders", 0, 7, value=Order("tea")))
    handle(Record("orders", 0, 7))
    Record("orders", "0", 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- errors -----------------------------------------------------------------------------------------------------------------


def why(error: Forbidden | OffsetOutOfRangeError) -> str | None:
    assert_type(error.code, int)
    return error.hint


def read_on(consumer: Consumer) -> None:
    try:
        consumer.poll(1.0)
    except (Forbidden, OffsetOutOfRangeError) as error:
        why(error)
    except errors.FencedInstanceIdError as error:
        why(error)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except RecordDeserializationError as error:
        assert_type(error.offset, int)
    print(errors.NoSuchError)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]


# -- settings -------------------------------------------------------------------------------------------------------------


def good_settings(location: Path) -> None:
    Consumer(
        bootstrap_servers=["one:9092", "two:9092"],
        group_id=None,
        group_protocol="consumer",
        session_timeout=45,
        heartbeat_interval_ms=3_000,
        max_poll_interval=timedelta(hours=1),
        partition_assignment_strategy=["cooperative-sticky", RangeAssignor],
        auto_offset_reset=timedelta(hours=1),
        isolation_level=IsolationLevel.READ_COMMITTED,
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_provider=lambda: OAuthToken("token", expires_at=5.0),
        ssl_truststore_location=location,
        ssl_context=ssl.create_default_context(),
    )
    Consumer(isolation_level="read_committed", auto_offset_reset="by_duration:PT1H", ssl_ca_location="ca.pem")
    Admin(bootstrap_servers=BROKERS, request_timeout=1.5, default_api_timeout_ms=30_000)
    common: AdminSettings = {"bootstrap_servers": BROKERS}
    more: ConsumerSettings = {"bootstrap_servers": BROKERS, "group_id": "g", "enable_auto_commit": False}
    Admin(**common)
    assert_type(Consumer(**more), Consumer[bytes, bytes])
    assert_type(AsyncConsumer(**more, value_deserializer=Order.parse), AsyncConsumer[bytes, Order])
    Consumer(more)


class MyRecord(Record[bytes, bytes]):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    pass


def wrong_settings(anything: str) -> None:
    Consumer(grup_id="billing")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Consumer(group_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(group_protocol="classical")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(session_timeout="45")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(session_timeout_ms=4.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(enable_auto_commit="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(max_poll_records=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(isolation_level=anything)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer(ssl_cafile="ca.pem")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AsyncConsumer(grup_id="billing")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Admin(group_id="billing")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Admin(request_timeout="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
