"""A user's program with producers, for mypy and pyright: as ``user_program.py``."""

from __future__ import annotations

from typing import assert_type

from ottla import (
    AsyncConsumer,
    AsyncProducer,
    AsyncTransaction,
    Consumer,
    Delivery,
    Prepared,
    Producer,
    RecordMetadata,
    Records,
    Transaction,
    transactions,
)

BROKERS = "localhost:9092"


def in_threads() -> None:
    with Producer(bootstrap_servers=BROKERS, transactional_id="billing-1") as producer:
        delivery = producer.send("orders", b"two coffees", key="table 7")
        assert_type(delivery, Delivery)
        assert_type(delivery.result(1), RecordMetadata)
        assert_type(delivery.result().offset, int)
        assert_type(producer.send_many("orders", ["one tea"]), list[Delivery])
        assert_type(producer.partitions_for("orders"), list[int])
        producer.send(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        producer.sned("orders")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        with producer.transaction() as transaction:
            assert_type(transaction, Transaction)
            transaction.commit_offsets(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            assert_type(transaction.prepare(), Prepared)
    Producer(transactionl_id="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def the_loop() -> None:
    with Producer(transactional_id="billing-1") as producer, Consumer(value_deserializer=int) as consumer:
        for transaction, records in transactions(consumer, producer):
            assert_type(transaction, Transaction)
            assert_type(records, Records[bytes, int])
            transaction.commit_offsets(consumer)
            transaction.commit_offsets(consumer.group_metadata(), {})
        transactions(consumer, 5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def in_tasks() -> None:
    async with AsyncProducer(transactional_id="billing-1") as producer, AsyncConsumer(key_deserializer=int) as consumer:
        delivery = await producer.send("orders", b"two coffees")
        assert_type(await delivery, RecordMetadata)
        async with producer.transaction() as first:
            assert_type(first, AsyncTransaction)
        async for transaction, records in transactions(consumer, producer):
            assert_type(transaction, AsyncTransaction)
            assert_type(records, Records[int, bytes])
