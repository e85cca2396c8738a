"""The timers of the transaction coordinator: the effects for the shell, and their removal."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from ottla.coordinator.effects import Append, SetTimer
from ottla.coordinator.runtime import PartitionRuntime, TimerFired
from ottla.coordinator.transactions.decision import TransactionConfig, TransactionContext, timeout_timer
from ottla.coordinator.transactions.shard import TransactionShard
from ottla.coordinator.transactions.transaction import MAX_EPOCH, Transaction, TransactionState
from ottla.protocol import ErrorCode
from ottla.types import Now, TopicPartition
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.transactional import Producer, make_topic

EXPIRATION = 5_000


def test_timers_of_expired_ids_are_removed(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path, **{"transactional.id.expiration.ms": EXPIRATION})
    make_topic(broker)
    for number in range(20):
        producer = Producer(broker, f"tx-{number}", timeout_ms=1_000)
        assert producer.init() is ErrorCode.none
        assert producer.write() is ErrorCode.none
        broker.pass_time(100)
    coordinator = broker.core.state.transactions._coordinator
    assert len(coordinator.armed_timers()) == 20
    broker.pass_time(10 * EXPIRATION)
    assert coordinator.armed_timers() == {}
    assert not [timers._in_shell for served in coordinator._runtime.all_served() if (timers := served.timers)._in_shell]
    broker.close()


def test_a_timer_that_moves_back_does_not_expire_the_id(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path, **{"transactional.id.expiration.ms": EXPIRATION})
    make_topic(broker)
    producer = Producer(broker)
    assert producer.init() is ErrorCode.none
    for _ in range(5):
        assert producer.write() is ErrorCode.none
        assert producer.end() is ErrorCode.none
        broker.pass_time(EXPIRATION - 1_000)
    assert producer.write() is ErrorCode.none, "the id has been in use, so it has not expired"
    broker.close()


def test_a_time_out_that_needs_a_producer_id_waits_until_there_is_one() -> None:
    """All epochs are used up, and no new id can be stored, as on a full disk."""
    ids = ProducerIds()
    context = TransactionContext(TransactionConfig(), Topics(), ids, lambda group: TopicPartition("__consumer_offsets", 0))
    shard = TransactionShard(context)
    partitions = frozenset({TopicPartition("t", 0)})
    shard.state._transactions["tx"] = Transaction(
        "tx", TransactionState.ONGOING, producer_id=5, previous_producer_id=5, epoch=MAX_EPOCH - 1, timeout_ms=1_000,
        partitions=partitions, started_at=0, updated_at=0,
    )  # fmt: skip
    runtime: PartitionRuntime[Any, Any] = PartitionRuntime(0, shard, count(1), 500)
    key = timeout_timer("tx")
    runtime.timers.note(SetTimer(key, 1_000))
    (again,) = runtime.submit("tx", TimerFired(key), Now(1_000, 1_000))
    assert isinstance(again, SetTimer)
    assert shard.state.get("tx").state is TransactionState.ONGOING
    ids.next = 77
    effects = runtime.submit("tx", TimerFired(key), Now(again.at, again.at))
    assert [type(effect) for effect in effects][:1] == [Append]


class ProducerIds:
    """As many as ``next`` says."""

    next: int | None = None

    def new_producer_id(self) -> int | None:
        return self.next


class Topics:
    def partition_count(self, topic: str) -> int:
        return 1
