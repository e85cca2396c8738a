"""``Transaction`` and ``AsyncTransaction`` on the embedded broker: what is committed, what is not, and what the calls say of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ottla import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Broker,
    Consumer,
    ConsumerGroupMetadata,
    Delivery,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from ottla.errors import (
    ClosedError,
    CommitFailedError,
    ForkedError,
    IllegalStateError,
    InvalidTopicError,
    MessageTooLargeError,
    OttlaError,
    OttlaTimeoutError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
)
from tests.end_to_end.broker_process import broker_process
from tests.end_to_end.producing import new_topic

SOON = 20.0
READER: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "isolation_level": "read_committed"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    quick = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
    with Broker(settings={"auto.create.topics.enable": "false", **quick}) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    with new_topic(broker) as name:
        yield name


def new(broker: Broker, topic: str, **settings: Any) -> Producer:
    """A producer whose transactional id is the topic's name."""
    return Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic, **{"max_block": SOON, **settings})


def new_async(broker: Broker, topic: str, **settings: Any) -> AsyncProducer:
    return AsyncProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic, **{"max_block": SOON, **settings})


def values(broker: Broker, topic: str, isolation_level: str = "read_committed") -> list[str]:
    """All values in partition 0; with ``read_committed`` those of committed transactions."""
    settings = {**READER, "isolation_level": isolation_level}
    with Consumer(bootstrap_servers=broker.bootstrap_servers, **settings) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        found: list[str] = []
        while consumer.position(tp) < end:
            found += [(record.value or b"").decode() for record in consumer.poll(1.0)]
    return found


def offset(broker: Broker, group: str, topic: str) -> int | None:
    """The committed offset of a group in partition 0."""
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=group) as consumer:
        found = consumer.committed(TopicPartition(topic, 0))[TopicPartition(topic, 0)]
    return None if found is None else found.offset


def send(producer: Producer, topic: str, *sent: str) -> list[Delivery]:
    return [producer.send(topic, value, partition=0) for value in sent]


# -- with ------------------------------------------------------------------------------------------------------------------


def test_a_block_commits_and_an_exception_aborts(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer:
        with producer.transaction() as transaction:
            assert transaction.is_open
            (first,) = send(producer, topic, "a")
        assert not transaction.is_open
        assert first.result(0).offset == 0
        with pytest.raises(RuntimeError, match="of the application"), producer.transaction():  # noqa: PT012
            (second,) = send(producer, topic, "b")
            producer.flush()
            raise RuntimeError("of the application")
        with producer.transaction():
            send(producer, topic, "c")
    assert second.done()
    assert values(broker, topic) == ["a", "c"]
    assert values(broker, topic, "read_uncommitted") == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_any_exception_aborts(broker: Broker, topic: str, kind: type[BaseException]) -> None:
    with new(broker, topic, linger=5) as producer:
        with pytest.raises(kind), producer.transaction():  # noqa: PT012
            (delivery,) = send(producer, topic, "a")
            raise kind
        with pytest.raises(TransactionAbortedError, match="the transaction was aborted"):
            delivery.result(SOON)
        with producer.transaction():
            send(producer, topic, "b")
    assert values(broker, topic, "read_uncommitted") == ["b"], "what was not sent is not written"


def test_calls_instead_of_a_block(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer:
        transaction = producer.transaction()
        assert repr(transaction) == "<Transaction not begun>"
        for call in (transaction.commit, transaction.abort, transaction.prepare):
            with pytest.raises(IllegalStateError, match="the transaction was not begun"):
                call()
        transaction.begin()
        assert repr(transaction) == "<Transaction open>"
        with pytest.raises(IllegalStateError, match=r"each transaction is another producer\.transaction\(\)"):
            transaction.begin()
        send(producer, topic, "a")
        transaction.commit()
        assert repr(transaction) == "<Transaction ended>"
        transaction.commit()
        with pytest.raises(IllegalStateError, match="it was committed"):
            transaction.abort()
        with pytest.raises(IllegalStateError, match="the transaction has ended"):
            transaction.commit_offsets(_metadata(broker, topic), {TopicPartition(topic, 0): 1})
    assert values(broker, topic) == ["a"]


def _metadata(broker: Broker, group: str) -> Any:
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=group, **READER) as consumer:
        return consumer.group_metadata()


def test_a_block_that_has_committed_or_aborted_by_itself(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer:
        with producer.transaction() as transaction:
            send(producer, topic, "a")
            transaction.commit()
        with producer.transaction() as transaction:
            send(producer, topic, "b")
            transaction.abort()
        times = {name.name: value for name, value in producer.metrics().items()}
        assert times["txn-begin-time-ns-total"] > 0  # it has initialized the producer
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:  # noqa: PT012
            send(producer, topic, "c")
            transaction.commit()
            raise ZeroDivisionError
    assert values(broker, topic) == ["a", "c"]


def test_records_outside_of_transactions_are_refused(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer:
        for _ in range(2):
            with pytest.raises(IllegalStateError, match="no transaction is open") as raised:
                producer.send(topic, "a")
            assert "with producer.transaction()" in str(raised.value.hint)
            with producer.transaction():
                send(producer, topic, "in")
    assert values(broker, topic) == ["in", "in"]


def test_one_transaction_at_a_time(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer, producer.transaction():
        send(producer, topic, "a")
        with pytest.raises(IllegalStateError, match="a transaction is open"):
            producer.transaction().begin()
        with pytest.raises(IllegalStateError, match="a transaction is open"):
            producer.initialize()
    assert values(broker, topic) == ["a"]


def test_a_producer_without_an_id_has_no_transactions(broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        pytest.raises(IllegalStateError, match="not transactional"),
    ):
        producer.transaction()


def test_a_record_that_fails_lets_the_transaction_fail(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer:
        broker.faults.fail("Produce", "INVALID_RECORD", topic=topic)
        with pytest.raises(TransactionAbortedError, match=f"writing 1 record to {topic}-0") as raised, producer.transaction():
            send(producer, topic, "a")
        assert not hasattr(raised.value, "__notes__"), "it was aborted"
        with producer.transaction():
            send(producer, topic, "b")
    assert values(broker, topic, "read_uncommitted") == ["b"]


def test_a_record_that_is_not_accepted_aborts_unless_the_program_handles_the_error(broker: Broker, topic: str) -> None:
    with new(broker, topic, max_request_size=1_000, max_block=0.3) as producer:
        for wrong, record in (
            (MessageTooLargeError, (topic, bytes(2_000))),
            (OttlaTimeoutError, ("no-such-topic", b"x")),
            (InvalidTopicError, ("no valid name", b"x")),
        ):
            with pytest.raises(wrong), producer.transaction():  # noqa: PT012
                send(producer, topic, "aborted")
                producer.send(*record)
            with producer.transaction():
                send(producer, topic, "kept")
                with pytest.raises(wrong):
                    producer.send(*record)
    assert values(broker, topic) == ["kept"] * 3


# -- offsets ---------------------------------------------------------------------------------------------------------------


def test_offsets_of_a_consumer_are_committed_with_the_records(broker: Broker, topic: str) -> None:
    for protocol in ("classic", "consumer"):
        group = f"{topic}-{protocol}"
        with (
            new(broker, topic) as producer,
            Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=group, group_protocol=protocol, **READER) as consumer,
        ):
            with producer.transaction():
                send(producer, topic, "in")
            consumer.subscribe([topic])
            while not (records := consumer.poll(1.0)):
                pass
            with suppress(RuntimeError), producer.transaction() as transaction:
                transaction.commit_offsets(consumer)
                raise RuntimeError
            assert offset(broker, group, topic) is None
            with producer.transaction() as transaction:
                send(producer, topic, "out")
                transaction.commit_offsets(consumer)
            committed = offset(broker, group, topic)
        assert committed is not None
        assert committed > [record.offset for record in records][-1]


def test_given_offsets_of_group_metadata(broker: Broker, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    with (
        new(broker, topic) as producer,
        Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=topic, **READER) as consumer,
    ):
        consumer.assign([tp])
        with producer.transaction() as transaction:
            transaction.commit_offsets(consumer.group_metadata(), {tp: 3})
            transaction.commit_offsets(consumer.group_metadata(), {})
        assert offset(broker, topic, topic) == 3
        with producer.transaction() as transaction:
            transaction.commit_offsets(consumer, {tp: OffsetAndMetadata(7, "text", 1)})
        found = consumer.committed(tp)[tp]
    assert found == OffsetAndMetadata(7, "text", 1)


def test_what_commit_offsets_cannot_take(broker: Broker, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    servers: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers}
    with new(broker, topic) as producer, producer.transaction() as transaction:
        for wrong in (None, "group", object(), producer):
            with pytest.raises(TypeError, match=r"commit_offsets\(\) needs an ottla\.Consumer, or the group_metadata\(\) of one"):
                transaction.commit_offsets(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="needs offsets: only a consumer knows"):
            transaction.commit_offsets(_metadata(broker, topic))
        for offsets in ({tp: "1"}, {tp: -1}, {"t": 1}, [tp]):
            with pytest.raises((TypeError, ValueError)):
                transaction.commit_offsets(_metadata(broker, topic), offsets)  # type: ignore[arg-type]
        with (
            Consumer(**servers, group_id=topic, auto_offset_reset="earliest") as consumer,
            pytest.raises(IllegalStateError, match="the consumer commits by itself"),
        ):
            transaction.commit_offsets(consumer)
        with Consumer(**servers, **READER) as consumer, pytest.raises(OttlaError, match=r"group"):
            transaction.commit_offsets(consumer)
        send(producer, topic, "a")
    assert values(broker, topic) == ["a"], "none of that aborts the transaction"


def test_a_rebalance_in_the_middle(broker: Broker, topic: str) -> None:
    servers: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "group_id": topic, "group_protocol": "classic"}
    with new(broker, topic) as producer, Consumer(**servers, **READER) as consumer:
        with producer.transaction():
            send(producer, topic, "in")
        consumer.subscribe([topic])
        while not consumer.poll(1.0):
            pass
        member = consumer.group_metadata()
        with pytest.raises(CommitFailedError), producer.transaction() as transaction:  # noqa: PT012
            send(producer, topic, "out")
            broker.faults.expire_member(topic)
            transaction.commit_offsets(member, {TopicPartition(topic, 0): 1})
        assert offset(broker, topic, topic) is None
        with producer.transaction():
            send(producer, topic, "more")
    assert values(broker, topic) == ["in", "more"]


def test_a_generation_without_a_member_is_refused(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer:
        with pytest.raises(CommitFailedError), producer.transaction() as transaction:
            transaction.commit_offsets(ConsumerGroupMetadata(topic, 2), {TopicPartition(topic, 0): 1})
        assert offset(broker, topic, topic) is None


# -- fencing and time-outs -------------------------------------------------------------------------------------------------


def test_a_later_producer_with_the_id_fences_the_earlier_one(broker: Broker, topic: str) -> None:
    with new(broker, topic) as earlier, new(broker, topic) as later:
        transaction = earlier.transaction()
        transaction.begin()
        send(earlier, topic, "a")
        earlier.flush()
        later.initialize()
        with pytest.raises(ProducerFencedError, match=f"transactional id '{topic}' has a newer epoch"):
            transaction.commit()
        with pytest.raises(ProducerFencedError):
            earlier.transaction().begin()
        with pytest.raises(ProducerFencedError):
            earlier.send(topic, "b")
        with later.transaction():
            send(later, topic, "c")
        earlier.initialize()
        with earlier.transaction():
            send(earlier, topic, "d")
        with pytest.raises(ProducerFencedError), later.transaction():
            send(later, topic, "e")
    assert values(broker, topic) == ["c", "d"]


def test_a_transaction_that_takes_too_long(broker: Broker, topic: str) -> None:
    with new(broker, topic, transaction_timeout=0.3) as producer:
        for writes_more in (False, True):
            transaction = producer.transaction()
            transaction.begin()
            send(producer, topic, "a")
            producer.flush()
            deadline = time.monotonic() + SOON
            while not _ended(broker, topic):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            if writes_more:
                send(producer, topic, "b")
            with pytest.raises(ProducerFencedError if writes_more else TransactionAbortedError) as raised:
                transaction.commit()
            assert "took more than 0.3 s" in str(raised.value.hint)
        producer.initialize()
        with producer.transaction():
            send(producer, topic, "c")
    assert values(broker, topic) == ["c"]


def _ended(broker: Broker, topic: str) -> bool:
    """Whether no open transaction holds back the readers of partition 0."""
    tp = TopicPartition(topic, 0)
    with (
        Consumer(bootstrap_servers=broker.bootstrap_servers, **READER) as committed,
        Consumer(bootstrap_servers=broker.bootstrap_servers) as any_record,
    ):
        return committed.end_offsets([tp]) == any_record.end_offsets([tp])


def test_time_outs_name_the_reason(broker: Broker, topic: str) -> None:
    with new(broker, topic, max_block=0.3) as producer:
        with broker.faults.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", times=None):
            with pytest.raises(
                OttlaTimeoutError, match=r"no transaction could be begun within 0\.3 s: .*COORDINATOR_NOT_AVAILABLE"
            ):
                producer.transaction().begin()
            with pytest.raises(OttlaTimeoutError, match=r"the producer was not initialized within 0\.3 s"):
                producer.initialize()
        with broker.faults.fail("EndTxn", "CONCURRENT_TRANSACTIONS", times=None) as fault:
            transaction = producer.transaction()
            transaction.begin()
            send(producer, topic, "a")
            with pytest.raises(TransactionAbortedError, match=r"the transaction was not committed within 0\.3 s"):
                transaction.commit()
            assert fault.struck > 1
        with producer.transaction():
            send(producer, topic, "b")
    assert values(broker, topic) == ["b"]


# -- responses that are lost, and brokers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["request", "reply"])
@pytest.mark.parametrize("api", ["InitProducerId", "Produce", "TxnOffsetCommit", "EndTxn"])
def test_a_lost_response_of_each_request(broker: Broker, topic: str, api: str, at: Any) -> None:
    with new(broker, topic) as producer:
        broker.faults.drop(api, at=at)
        for number in range(2):
            with producer.transaction() as transaction:
                send(producer, topic, str(number))
                transaction.commit_offsets(_metadata(broker, topic), {TopicPartition(topic, 0): number + 1})
    assert values(broker, topic, "read_uncommitted") == ["0", "1"]
    assert offset(broker, topic, topic) == 2


def test_an_outcome_that_is_not_known_yet(broker: Broker, topic: str) -> None:
    with new(broker, topic, max_block=0.3) as producer:
        transaction = producer.transaction()
        transaction.begin()
        send(producer, topic, "a")
        producer.flush()
        with broker.faults.delay("EndTxn", 1.0), pytest.raises(TransactionOutcomeUnknownError, match=r"not known within 0\.3 s"):
            transaction.commit()
        deadline = time.monotonic() + SOON
        while True:
            try:
                transaction.commit()
                break
            except TransactionOutcomeUnknownError:
                assert time.monotonic() < deadline
        with producer.transaction():
            send(producer, topic, "b")
    assert values(broker, topic) == ["a", "b"]


def test_the_coordinator_moves(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer:
        for value in ("a", "b"):
            with producer.transaction():
                send(producer, topic, value)
                producer.flush()
                broker.faults.move_coordinator(transactional_id=topic, seconds=0.3)
    assert values(broker, topic, "read_uncommitted") == ["a", "b"]


def test_the_broker_restarts_in_the_middle(tmp_path: Path) -> None:
    reader: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with broker_process(tmp_path) as (process, servers):
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics({"t": 1})
        with Producer(bootstrap_servers=servers, transactional_id="tx", max_block=SOON) as producer:
            transaction = producer.transaction()
            transaction.begin()
            producer.send("t", "a").result(SOON)
            process.kill()
            process.wait()
            with (
                broker_process(tmp_path, int(servers.rsplit(":", 1)[1])),
                Consumer(bootstrap_servers=servers, **reader) as consumer,
            ):
                consumer.assign([TopicPartition("t", 0)])
                producer.send("t", "b").result(SOON)
                transaction.commit()
                found: list[bytes | None] = []
                while len(found) < 2:
                    found += [record.value for record in consumer.poll(SOON)]
                producer.close()
    assert found == [b"a", b"b"]


# -- endings ---------------------------------------------------------------------------------------------------------------


def test_close_aborts_an_open_transaction(broker: Broker, topic: str) -> None:
    producer = new(broker, topic)
    transaction = producer.transaction()
    transaction.begin()
    send(producer, topic, "a")
    producer.flush()
    producer.close()
    assert _ended(broker, topic)
    assert values(broker, topic) == []
    for call in (transaction.commit, transaction.abort):
        with pytest.raises(ClosedError, match="is closed"):
            call()
    with pytest.raises(ClosedError):
        producer.transaction()


@pytest.mark.parametrize("api", ["FindCoordinator", "InitProducerId", "TxnOffsetCommit", "EndTxn"])
def test_close_ends_a_call_that_waits_in_another_thread(broker: Broker, topic: str, api: str) -> None:
    producer = new(broker, topic)
    member = ConsumerGroupMetadata(topic)
    with broker.faults.fail(api, "COORDINATOR_LOAD_IN_PROGRESS", times=None) as fault, ThreadPoolExecutor(1) as pool:

        def transact() -> None:
            with producer.transaction() as transaction:
                transaction.commit_offsets(member, {TopicPartition(topic, 0): 1})

        waiting = pool.submit(transact)
        deadline = time.monotonic() + SOON
        while not fault.struck:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        producer.close(0.1)
        with pytest.raises(OttlaError, match=r"closed|the transaction was aborted"):
            waiting.result(SOON)
    with new(broker, topic) as producer:
        producer.initialize()
    assert offset(broker, topic, topic) is None


def test_an_exception_that_leaves_both_blocks(broker: Broker, topic: str) -> None:
    with pytest.raises(RuntimeError, match="of the application"), new(broker, topic) as producer, producer.transaction():  # noqa: PT012
        send(producer, topic, "a")
        raise RuntimeError("of the application")
    assert values(broker, topic) == []


def test_an_abort_that_fails_is_a_note(broker: Broker, topic: str) -> None:
    with new(broker, topic, max_block=0.3) as producer:
        with (  # noqa: PT012
            broker.faults.fail("EndTxn", "CONCURRENT_TRANSACTIONS", times=None),
            pytest.raises(RuntimeError, match="of the application") as raised,
            producer.transaction(),
        ):
            send(producer, topic, "a")
            producer.flush()
            raise RuntimeError("of the application")
        (note,) = raised.value.__notes__
        assert "aborting the transaction failed, too: the transaction is being aborted" in note
        # Not "is None": CPython 3.11 goes on to handle an exception in whose handler a trace function raised, as earlier tests do.
        assert not isinstance(raised.value.__context__, OttlaError)
        with producer.transaction():
            send(producer, topic, "b")
    assert values(broker, topic) == ["b"]


def test_a_forked_child_has_no_transaction(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer, producer.transaction() as transaction:
        send(producer, topic, "of the parent")
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            outcomes = []
            calls = (transaction.commit, transaction.abort, producer.transaction, lambda: producer.send(topic, "x", partition=0))
            for call in calls:
                try:
                    call()
                    outcomes.append("done")
                except ForkedError:
                    outcomes.append("forked")
                except BaseException as error:
                    outcomes.append(repr(error))
            os.write(writer, " ".join(outcomes).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 1_000) == b"forked forked forked forked"
    assert values(broker, topic) == ["of the parent"]


def test_prepare_leaves_the_transaction_open(broker: Broker, topic: str) -> None:
    with new(broker, topic) as producer, producer.transaction() as transaction:
        send(producer, topic, "a")
        prepared = transaction.prepare()
        with pytest.raises(IllegalStateError, match=r"finish\(\) ends it"):
            producer.send(topic, "b")
        times = {name.name: value for name, value in producer.metrics().items()}
        assert times["txn-commit-time-ns-total"] == 0, "prepare() has a metric of its own"
    assert (prepared.transactional_id, prepared.transaction_version, prepared.is_empty) == (topic, 2, False)
    assert not _ended(broker, topic), "neither block has ended it"
    with new(broker, topic) as producer:
        producer.initialize()
    assert values(broker, topic) == []


# -- asyncio ---------------------------------------------------------------------------------------------------------------


def test_async_transactions(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with (
            new_async(broker, topic) as producer,
            AsyncConsumer(bootstrap_servers=broker.bootstrap_servers, group_id=topic, **READER) as consumer,
        ):
            async with producer.transaction() as transaction:
                assert repr(transaction) == "<AsyncTransaction open>"
                await producer.send(topic, "a", partition=0)
            await consumer.subscribe([topic])
            while not await consumer.poll(1.0):
                pass
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with producer.transaction() as transaction:
                    await producer.send(topic, "b", partition=0)
                    await transaction.commit_offsets(consumer)
                    raise ZeroDivisionError
            assert offset(broker, topic, topic) is None
            async with producer.transaction() as transaction:
                await producer.send(topic, "c", partition=0)
                await transaction.commit_offsets(consumer)
            with pytest.raises(IllegalStateError, match="it was committed"):
                await transaction.abort()
            with pytest.raises(IllegalStateError, match="no transaction is open"):
                await producer.send(topic, "d", partition=0)
            with pytest.raises(TypeError, match=r"needs an ottla\.AsyncConsumer or an ottla\.Consumer"):
                async with producer.transaction() as transaction:
                    await transaction.commit_offsets("group")

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(broker, topic) == ["a", "c"]
    assert offset(broker, topic, topic) is not None


def test_a_cancelled_task_aborts(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new_async(broker, topic) as producer:
            entered = asyncio.Event()

            async def body() -> None:
                async with producer.transaction():
                    await producer.send(topic, "a", partition=0)
                    await producer.flush()
                    entered.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(body())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction():
                await producer.send(topic, "b", partition=0)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(broker, topic) == ["b"]


def test_a_begin_that_is_cancelled_leaves_no_transaction_open(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new_async(broker, topic) as producer:
            broker.faults.delay("InitProducerId", 0.3)
            with pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0.1), producer.transaction():
                    raise AssertionError("it has begun")
            async with producer.transaction():
                await producer.send(topic, "a", partition=0)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(broker, topic) == ["a"]


def test_a_commit_that_is_cancelled_is_made(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new_async(broker, topic) as producer:
            with broker.faults.delay("EndTxn", 0.3) as fault:
                transaction = producer.transaction()
                await transaction.begin()
                await producer.send(topic, "a", partition=0)
                with pytest.raises(asyncio.TimeoutError):
                    async with asyncio.timeout(0.1):
                        await transaction.commit()
            assert fault.struck <= 1

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(broker, topic) == ["a"], "close() waits for it"


def test_a_transaction_without_its_offsets_is_not_committed(broker: Broker, topic: str) -> None:
    """The body catches the error of ``commit_offsets``: others process these records."""
    settings = {"group_id": topic, "max_poll_interval": 1, "group_protocol": "consumer", **READER}
    with new(broker, topic) as producer, Consumer(bootstrap_servers=broker.bootstrap_servers, **settings) as consumer:
        send_outside(broker, topic, "in")
        consumer.subscribe([topic])
        while not consumer.poll(1.0):
            pass
        time.sleep(1.5)  # longer than max_poll_interval: the consumer leaves the group
        with pytest.raises(TransactionAbortedError, match="no member of group"), producer.transaction() as transaction:  # noqa: PT012
            send(producer, topic, "out")
            with pytest.raises(CommitFailedError):
                transaction.commit_offsets(consumer)
        with producer.transaction():
            send(producer, topic, "after")
    assert values(broker, topic) == ["in", "after"]


def test_a_transaction_that_is_lost_is_aborted(broker: Broker, topic: str) -> None:
    """Ctrl-C came between the return of ``begin()`` and the body."""
    with new(broker, topic) as producer:
        with pytest.warns(ResourceWarning, match="neither committed nor aborted"):
            producer.transaction().begin()
        with producer.transaction():
            send(producer, topic, "found")
    assert values(broker, topic) == ["found"]


@pytest.mark.parametrize("commit", [True, False])
def test_ctrl_c_before_the_end_is_submitted_ends_the_transaction(
    broker: Broker, topic: str, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new(broker, topic) as producer:
        transaction = producer.transaction()
        transaction.begin()
        send(producer, topic, "a")
        submit = transaction._calls._submit

        def interrupted(command: object) -> None:
            transaction._calls._submit = submit
            raise KeyboardInterrupt

        monkeypatch.setattr(transaction._calls, "_submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            transaction.commit() if commit else transaction.abort()
        with producer.transaction():
            send(producer, topic, "b")
    assert values(broker, topic) == (["a", "b"] if commit else ["b"])


def test_a_consumer_of_another_cluster_is_refused(broker: Broker, topic: str) -> None:
    with Broker() as other, new(broker, topic) as producer:
        send_outside(other, topic, "in")
        with Consumer(bootstrap_servers=other.bootstrap_servers, group_id=topic, **READER) as consumer:
            consumer.subscribe([topic])
            while not consumer.poll(1.0):
                pass
            span = r"reads from the cluster .* writes to the cluster"
            with pytest.raises(IllegalStateError, match=span), producer.transaction() as transaction:  # noqa: PT012
                send(producer, topic, "a")
                transaction.commit_offsets(consumer)
    assert values(broker, topic) == []


def send_outside(broker: Broker, topic: str, value: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, value, partition=0)
