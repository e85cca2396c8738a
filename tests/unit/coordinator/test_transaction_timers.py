"""The timers of the transaction coordinator: the effects for the shell, and their removal."""

from __future__ import annotations

from pathlib import Path

from ottla.protocol import ErrorCode
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
