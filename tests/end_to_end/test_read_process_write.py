"""The loop of ``ottla.transactions``: what is read and what is written from it are committed together, or not at all."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ottla
from ottla import AsyncConsumer, AsyncProducer, Broker, Consumer, Producer, TopicPartition
from ottla.errors import (
    ClosedError,
    IllegalStateError,
    MessageTooLargeError,
    ProducerFencedError,
    TransactionOutcomeUnknownError,
    WakeupError,
)

READER: dict[str, Any] = {
    "group_id": "workers",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"offsets.topic.num.partitions": 2, "group.initial.rebalance.delay.ms": 0}) as started:
        yield started


@pytest.fixture
def names(broker: Broker, request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """Topics to read from and to write to, and a group."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60]
    with ottla.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({f"{name}-in": 2, f"{name}-out": 1})
    return f"{name}-in", f"{name}-out", name


def fill(broker: Broker, topic: str, count: int) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, str(number), partition=number % 2)


def committed(broker: Broker, topic: str) -> list[int]:
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        found: list[int] = []
        while consumer.position(tp) < end:
            found += [int(record.value or b"") for record in consumer.poll(timeout=1)]
        return found


def clients(broker: Broker, names: tuple[str, str, str], **settings: Any) -> tuple[Consumer[Any, Any], Producer]:
    inputs, _, group = names
    consumer_settings = {name: value for name, value in settings.items() if name.startswith(("max_poll", "session"))}
    rest = {name: value for name, value in settings.items() if name not in consumer_settings}
    consumer = Consumer(bootstrap_servers=broker.bootstrap_servers, **{**READER, "group_id": group, **consumer_settings})
    consumer.subscribe([inputs])
    return consumer, Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=group, **rest)


def copy(
    consumer: Consumer[Any, Any],
    producer: Producer,
    topic: str,
    count: int,
    each: Callable[[int, Any, Any], None] = lambda turn, transaction, records: None,
) -> None:
    """Copy until ``count`` records were handed out; ``each`` is called in every transaction."""
    handed = 0
    for turn, (transaction, records) in enumerate(ottla.transactions(consumer, producer, timeout=0.1)):
        each(turn, transaction, records)
        for record in records:
            producer.send(topic, record.value)
        handed += len(records)
        if handed >= count:
            transaction.commit()
            break


def test_each_record_is_written_once(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 1_000)
    consumer, producer = clients(broker, names, max_poll_records=100)
    with producer, consumer:
        copy(consumer, producer, names[1], 1_000)
        offsets = consumer.committed(TopicPartition(names[0], 0), TopicPartition(names[0], 1))
        times = {name.name: value for name, value in producer.metrics().items() if name.name.startswith("txn-")}
        assert sorted(times) == [
            f"txn-{what}-time-ns-total" for what in ("abort", "begin", "commit", "init", "prepare", "send-offsets")
        ]
        assert times["txn-begin-time-ns-total"] > 0  # it has initialized the producer
        assert times["txn-abort-time-ns-total"] == 0
    assert [position.offset for position in offsets.values() if position] == [500, 500]
    assert sorted(committed(broker, names[1])) == list(range(1_000))


def test_an_exception_in_the_body_commits_nothing_and_a_second_loop_reads_the_records_again(
    broker: Broker, names: tuple[str, str, str]
) -> None:
    fill(broker, names[0], 10)

    def fail(turn: int, transaction: Any, records: Any) -> None:
        producer.send(names[1], "-1")
        producer.flush()
        raise RuntimeError("the handler failed")

    consumer, producer = clients(broker, names)
    with producer, consumer:
        with pytest.raises(RuntimeError, match="the handler failed"):
            copy(consumer, producer, names[1], 10, fail)
        copy(consumer, producer, names[1], 10)
    assert sorted(committed(broker, names[1])) == list(range(10))


def test_break_without_commit_aborts(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 10)
    consumer, producer = clients(broker, names)
    with producer, consumer:
        for _, records in ottla.transactions(consumer, producer):
            for record in records:
                producer.send(names[1], record.value)
            break
        assert committed(broker, names[1]) == []
        copy(consumer, producer, names[1], 10)
    assert sorted(committed(broker, names[1])) == list(range(10))


def test_after_an_abort_in_the_body_the_records_come_again(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 10)
    consumer, producer = clients(broker, names)
    seen: list[int] = []
    with producer, consumer:
        for transaction, records in ottla.transactions(consumer, producer, timeout=0.1):
            values = [int(record.value) for record in records]
            for value in values:
                producer.send(names[1], str(value))
            if not seen:
                transaction.abort()
            seen += values
            if len(seen) >= 20:
                transaction.commit()
                break
    assert sorted(seen) == sorted([*range(10), *range(10)])
    assert sorted(committed(broker, names[1])) == list(range(10))


def test_a_transaction_that_takes_too_long_is_repeated(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 10)
    consumer, producer = clients(broker, names, transaction_timeout=0.3)

    def dawdle(turn: int, transaction: Any, records: Any) -> None:
        if turn == 0:
            producer.send(names[1], "-1").result(10)
            time.sleep(0.5)  # the coordinator aborts the transaction meanwhile

    with producer, consumer:
        copy(consumer, producer, names[1], 20, dawdle)
    assert sorted(committed(broker, names[1])) == list(range(10))


def test_a_member_that_was_replaced_leaves_its_records_to_the_other_one(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 10)
    consumer, producer = clients(broker, names, max_poll_interval=0.3, session_timeout=6)
    other, its_producer = clients(broker, (names[0], names[1], names[2]))
    its_producer.close()
    with producer, consumer, other, Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="other") as its:
        loop = ottla.transactions(consumer, producer, timeout=0.1)
        _, records = next(loop)
        for record in records:
            producer.send(names[1], record.value)
        copied = threading.Thread(target=copy, args=(other, its, names[1], 10))
        time.sleep(0.5)  # max.poll.interval.ms has passed
        copied.start()
        copied.join(20)
        assert not copied.is_alive()
        stopped = threading.Timer(1, consumer.wakeup)
        stopped.start()
        with pytest.raises(WakeupError):
            next(loop)
    assert sorted(committed(broker, names[1])) == list(range(10))


def test_an_error_that_a_retry_does_not_fix_is_raised(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 2)
    with ottla.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.alter_configs("topic", names[1], {"max.message.bytes": "1000"})
    consumer, producer = clients(broker, names)

    def too_much(turn: int, transaction: Any, records: Any) -> None:
        producer.send(names[1], bytes(10_000))

    with producer, consumer, pytest.raises(ottla.OttlaError) as raised:
        copy(consumer, producer, names[1], 4, too_much)
    assert isinstance(raised.value.cause, MessageTooLargeError)
    assert committed(broker, names[1]) == []


def test_a_fenced_producer_ends_the_loop(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 2)
    consumer, producer = clients(broker, names)

    def succeed(turn: int, transaction: Any, records: Any) -> None:
        producer.send(names[1], "7").result(10)
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=names[2]) as successor:
            successor.initialize()

    with producer, consumer:
        with pytest.raises(ProducerFencedError, match="has a newer epoch"):
            copy(consumer, producer, names[1], 4, succeed)
        health = producer.health()
        assert (health.healthy, health.transaction) == (False, "FATAL_ERROR")
        assert "has a newer epoch" in health.reasons[0]
        producer.initialize()
        assert (producer.health().healthy, producer.health().transaction) == (True, "READY")
    assert committed(broker, names[1]) == []


def test_tasks_have_the_same_loop(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 100)

    async def fail(loop: Any, producer: AsyncProducer) -> None:
        async for _ in loop:
            await producer.send(names[1], "-1")
            raise RuntimeError("once")

    async def main() -> None:
        servers = broker.bootstrap_servers
        settings = {**READER, "group_id": names[2], "max_poll_records": 10}
        async with (
            AsyncProducer(bootstrap_servers=servers, transactional_id=names[2]) as producer,
            AsyncConsumer(bootstrap_servers=servers, **settings) as consumer,
        ):
            await consumer.subscribe([names[0]])
            with pytest.raises(RuntimeError, match="once"):
                await fail(ottla.transactions(consumer, producer), producer)
            count = 0
            async for transaction, records in ottla.transactions(consumer, producer):
                for record in records:
                    await producer.send(names[1], record.value)
                count += len(records)
                if count >= 100:
                    await transaction.commit()
                    break

    asyncio.run(main())
    assert sorted(committed(broker, names[1])) == list(range(100))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"group_id": None}, "needs a consumer with a group"),
        ({"enable_auto_commit": True}, "commits the offsets itself"),
        ({"isolation_level": "read_uncommitted"}, "records of transactions that are aborted"),
    ],
)
def test_a_consumer_with_other_settings_is_refused(settings: dict[str, Any], text: str) -> None:
    with (
        Consumer(bootstrap_servers="localhost:1", **{**READER, **settings}) as consumer,
        Producer(bootstrap_servers="localhost:1", transactional_id="t") as producer,
        pytest.raises(IllegalStateError, match=text),
    ):
        ottla.transactions(consumer, producer)


def test_clients_of_other_kinds_are_refused() -> None:
    wrong: Any = object()
    with (
        Consumer(bootstrap_servers="localhost:1", **READER) as consumer,
        Producer(bootstrap_servers="localhost:1") as producer,
    ):
        with pytest.raises(IllegalStateError, match="the producer is not transactional"):
            ottla.transactions(consumer, producer)
        with pytest.raises(TypeError, match="a Consumer needs a Producer"):
            ottla.transactions(consumer, wrong)
        with pytest.raises(TypeError, match="consumer must be a Consumer or an AsyncConsumer"):
            ottla.transactions(wrong, producer)


# -- a loop that was left, and another one with the same clients -----------------------------------------------------------------


def test_a_second_loop_does_not_repeat_what_the_first_has_committed(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 20)
    consumer, producer = clients(broker, names, max_poll_records=5)
    with producer, consumer:
        copy(consumer, producer, names[1], 10)
        with producer.transaction():
            producer.send(names[1], "20")
        copy(consumer, producer, names[1], 10)
    assert sorted(committed(broker, names[1])) == list(range(21))


def test_a_second_loop_with_another_producer_reads_what_the_first_could_not_begin(
    broker: Broker, names: tuple[str, str, str]
) -> None:
    fill(broker, names[0], 10)
    consumer, producer = clients(broker, names)
    with consumer:
        loop = ottla.transactions(consumer, producer)
        producer.close()
        with pytest.raises(ClosedError):
            next(loop)
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="another") as another:
            copy(consumer, another, names[1], 10)
    assert sorted(committed(broker, names[1])) == list(range(10))


def test_records_behind_the_committed_offset_are_read_again_after_a_time_out(broker: Broker, names: tuple[str, str, str]) -> None:
    """The program has called ``seek()``: the committed offset does not say where it was."""
    fill(broker, names[0], 10)
    consumer, producer = clients(broker, names, transaction_timeout=0.3)

    def dawdle(turn: int, transaction: Any, records: Any) -> None:
        if turn == 0:
            producer.send(names[1], "-1").result(10)
            time.sleep(0.5)

    with producer, consumer:
        copy(consumer, producer, names[1], 10)
        consumer.seek_to_beginning()
        copy(consumer, producer, names[1], 20, dawdle)
    assert sorted(committed(broker, names[1])) == sorted([*range(10), *range(10)])


def in_tasks(broker: Broker, names: tuple[str, str, str], main: Callable[[AsyncConsumer[Any, Any], AsyncProducer], Any]) -> None:
    async def run() -> None:
        servers = broker.bootstrap_servers
        async with (
            AsyncProducer(bootstrap_servers=servers, transactional_id=names[2]) as producer,
            AsyncConsumer(bootstrap_servers=servers, **{**READER, "group_id": names[2], "max_poll_records": 5}) as consumer,
        ):
            await consumer.subscribe([names[0]])
            await main(consumer, producer)

    asyncio.run(run())


async def copy_in_task(consumer: AsyncConsumer[Any, Any], producer: AsyncProducer, topic: str, missing: set[int], end: str) -> None:
    """Copy until all of these values were seen, and take them from the set; then ``commit`` or ``break``."""
    async for transaction, records in ottla.transactions(consumer, producer, timeout=0.1):
        for record in records:
            await producer.send(topic, record.value)
        missing.difference_update(int(record.value) for record in records)
        if not missing:
            if end == "commit":
                await transaction.commit()
            break


def test_a_task_that_is_cancelled_while_it_commits_has_committed_once(broker: Broker, names: tuple[str, str, str]) -> None:
    fill(broker, names[0], 20)

    async def main(consumer: AsyncConsumer[Any, Any], producer: AsyncProducer) -> None:
        missing = {18, 19}
        fault = broker.faults.delay("EndTxn", 0.5, after=1, times=1)
        task = asyncio.create_task(copy_in_task(consumer, producer, names[1], missing, "commit"))
        await asyncio.to_thread(fault.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await copy_in_task(consumer, producer, names[1], missing, "commit")

    in_tasks(broker, names, main)
    assert sorted(committed(broker, names[1])) == list(range(20))


def test_a_loop_that_is_cancelled_before_it_has_aborted_the_one_before_loses_nothing(
    broker: Broker, names: tuple[str, str, str]
) -> None:
    fill(broker, names[0], 20)

    async def main(consumer: AsyncConsumer[Any, Any], producer: AsyncProducer) -> None:
        await copy_in_task(consumer, producer, names[1], {0}, "break")
        fault = broker.faults.delay("EndTxn", 0.5, times=1)
        task = asyncio.create_task(copy_in_task(consumer, producer, names[1], {18, 19}, "commit"))
        await asyncio.to_thread(fault.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await copy_in_task(consumer, producer, names[1], {18, 19}, "commit")

    in_tasks(broker, names, main)
    assert sorted(committed(broker, names[1])) == list(range(20))


@pytest.mark.parametrize("is_executed", [True, False])
def test_another_producer_goes_on_after_one_was_closed(broker: Broker, names: tuple[str, str, str], *, is_executed: bool) -> None:
    fill(broker, names[0], 10)
    consumer, producer = clients(broker, names)
    with consumer, Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"{names[2]}-2") as another:
        lose = broker.faults.lose_reply if is_executed else broker.faults.drop
        with lose("EndTxn", times=None, transactional_id=names[2]) as fault:
            closing = threading.Thread(target=lambda: (fault.wait(), producer.close(0)))
            closing.start()
            with pytest.raises((TransactionOutcomeUnknownError, ClosedError)):
                copy(consumer, producer, names[1], 10)
            closing.join()
        if not is_executed:
            with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=names[2]) as successor:
                successor.initialize()  # aborts
        fill(broker, names[0], 2)
        copy(consumer, another, names[1], 2 if is_executed else 12)
    assert sorted(committed(broker, names[1])) == sorted([*range(10), 0, 1])


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_producer_is_closed_in_the_body(broker: Broker, names: tuple[str, str, str], *, is_whole: bool) -> None:
    """``is_whole``: the end of the body commits, and not the body."""
    fill(broker, names[0], 10)
    consumer, producer = clients(broker, names)
    with consumer, Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"{names[2]}-2") as another:
        with pytest.raises(ClosedError):  # noqa: PT012
            for transaction, records in ottla.transactions(consumer, producer, timeout=0.1):
                for record in records:
                    producer.send(names[1], record.value)
                producer.close(5)
                if not is_whole:
                    transaction.commit()
        copy(consumer, another, names[1], 10)
    assert sorted(committed(broker, names[1])) == list(range(10))


def test_a_loop_that_the_network_thread_collects_is_aborted(broker: Broker, names: tuple[str, str, str]) -> None:
    """The garbage collector runs on any thread."""
    fill(broker, names[0], 10)
    consumer, producer = clients(broker, names)
    with consumer, producer:
        loop: Any = ottla.transactions(consumer, producer)
        next(loop)
        done = threading.Event()
        thread = producer._network._thread
        assert thread is not None

        def collect(item: object, now: object) -> None:
            loop.close()
            done.set()

        thread._core.register(Collect, collect)
        thread.submit(Collect())
        assert done.wait(10)
        copy(consumer, producer, names[1], 10)
    assert sorted(committed(broker, names[1])) == list(range(10))


class Collect:
    """A command that closes the generator."""
