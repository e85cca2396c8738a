"""The coordinator of transactions that moves away and comes back, by a scripted fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.effects import NodeEndpoint
from ottla.broker.faults import rules
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import find_coordinator_request
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.injected import add, remove, struck
from tests.unit.broker.transactional import Producer, committed_offset, fetch, make_topic, read, state_of


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = CoreUnderTest(tmp_path)
    make_topic(core)
    yield core
    core.kill()


def transactional_coordinator(broker: CoreUnderTest, name: str = "tx") -> tuple[ErrorCode, str, int]:
    request = find_coordinator_request.FindCoordinatorRequest(key_type=1, coordinator_keys=(name,))
    found = broker.ask(Api.FIND_COORDINATOR, request).coordinators[0]
    return ErrorCode(found.error_code), found.host, found.port


@pytest.mark.parametrize("action", [rules.MoveCoordinator(), rules.MoveCoordinator(transactional_id="tx")])
def test_a_transaction_whose_coordinator_moves_goes_on_where_it_was(broker: CoreUnderTest, action: rules.MoveCoordinator) -> None:
    gone, none = ErrorCode.not_coordinator, ErrorCode.none
    producer = Producer(broker)
    assert (producer.init(), producer.write(), producer.commit_offset(5)) == (none, none, none)
    add(broker, action, times=None)
    assert transactional_coordinator(broker)[0] is ErrorCode.coordinator_not_available
    assert (producer.add("t", 1), producer.add_offsets(), producer.end(), producer.init()) == (gone, gone, gone, gone)
    assert producer.write(1) is ErrorCode.not_enough_replicas  # the coordinator would have to say that it may
    assert producer.write(0) is none  # it has said so
    assert len(struck(broker)) == 7
    remove(broker, 1)
    assert transactional_coordinator(broker) == (none, "127.0.0.1", 9092)
    assert state_of(broker) == ("Ongoing", 0)
    assert (producer.write(1), producer.end()) == (none, none)
    assert (read(broker), read(broker, 1), committed_offset(broker)) == ([0, 1], [0], 5)


def test_a_group_that_moves_leaves_transactions_where_they_are(broker: CoreUnderTest) -> None:
    producer = Producer(broker)
    assert producer.init() is ErrorCode.none
    add(broker, rules.MoveCoordinator(group="readers"), times=None)
    assert transactional_coordinator(broker)[0] is ErrorCode.none
    assert (producer.write(), producer.end()) == (ErrorCode.none, ErrorCode.none)
    assert producer.commit_offset(5) is ErrorCode.not_coordinator


def test_a_transaction_that_is_somewhere_else_is_not_timed_out_here(broker: CoreUnderTest) -> None:
    producer = Producer(broker, timeout_ms=10_000)
    assert (producer.init(), producer.write()) == (ErrorCode.none, ErrorCode.none)
    add(broker, rules.MoveCoordinator(transactional_id="tx", to=NodeEndpoint(1000, "elsewhere", 1)), times=None)
    assert transactional_coordinator(broker) == (ErrorCode.none, "elsewhere", 1)
    broker.pass_time(60_000)
    assert fetch(broker).high_watermark == 1
    remove(broker, 1)
    broker.pass_time(1)
    assert state_of(broker)[0] == "CompleteAbort"
    assert (read(broker), fetch(broker).last_stable_offset) == ([], 2)


def test_requests_that_wait_for_the_disk_fail_when_the_coordinator_moves(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path, **{"log.flush.interval.messages": 1})
    make_topic(broker)
    producer = Producer(broker)
    assert (producer.init(), producer.write()) == (ErrorCode.none, ErrorCode.none)
    ending = broker.send(Api.END_TXN, producer.end_message(), version=5)
    waiting = broker.send(Api.END_TXN, producer.end_message(), version=5)
    assert not {ending, waiting} & broker.replies.keys()
    add(broker, rules.MoveCoordinator(transactional_id="tx"), times=None)
    codes = {ErrorCode(broker.replies[ticket].error_code) for ticket in (ending, waiting)}
    assert codes == {ErrorCode.not_coordinator}
    broker.run_jobs()
    remove(broker, 1)
    assert state_of(broker) == ("CompleteCommit", 1)  # it was in the log, so a repeated request succeeds
    assert producer.end() is ErrorCode.none
    broker.close()


def test_a_load_that_began_before_the_coordinator_moved_away_again_is_not_used(broker: CoreUnderTest) -> None:
    """Its reader had passed the place where a marker was then appended."""
    producer, moved = Producer(broker), rules.MoveCoordinator(group="readers")
    assert (producer.init(), producer.write(), producer.commit_offset(5)) == (ErrorCode.none,) * 3
    add(broker, moved, times=None)
    broker.take(broker.core.on_command(rules.RemoveFaults(1), broker.now)[1])
    first = broker.jobs.pop()
    outcome = first.job()
    add(broker, moved, 2, times=None)
    assert producer.end() is ErrorCode.none
    broker.take(broker.core.on_command(rules.RemoveFaults(2), broker.now)[1])
    broker.take(broker.core.on_job(first.tag, outcome, broker.now))
    broker.run_jobs()
    assert committed_offset(broker) == 5, "the second load has read the marker"


def test_a_coordinator_that_two_faults_have_moved_is_back_after_both(broker: CoreUnderTest) -> None:
    producer = Producer(broker)
    assert producer.init() is ErrorCode.none
    add(broker, rules.MoveCoordinator(), 1, times=None)
    add(broker, rules.MoveCoordinator(transactional_id="tx", to=NodeEndpoint(1000, "elsewhere", 1)), 2, times=None)
    assert transactional_coordinator(broker) == (ErrorCode.none, "elsewhere", 1)
    remove(broker, 2)
    assert transactional_coordinator(broker)[0] is ErrorCode.coordinator_not_available
    remove(broker, 1)
    assert transactional_coordinator(broker) == (ErrorCode.none, "127.0.0.1", 9092)
    assert producer.write() is ErrorCode.none
