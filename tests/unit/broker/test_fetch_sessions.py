"""Fetch sessions: what requests and responses may omit, and which session is evicted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from ottla.broker.faults.rules import AddFault, Fail, Match, Rule
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import fetch_request
from tests.example_counts import examples
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.harness import batch
from tests.unit.broker.requests import create, delete_records, produce

PARTITIONS = 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = CoreUnderTest(tmp_path, **{"max.incremental.fetch.session.cache.slots": 2})
    create(core, "orders", PARTITIONS)
    yield core
    core.kill()


def turn(
    session: tuple[int, int], wanted: dict[int, int] | None = None, gone: tuple[int, ...] = (), wait: int = 0, **more: Any
) -> fetch_request.FetchRequest:
    """A fetch of the topic ``orders``: offsets to begin at by partition, and what is not wanted any more."""
    parts = tuple(
        fetch_request.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
        for number, offset in (wanted or {}).items()
    )
    forgotten = (fetch_request.ForgottenTopic(topic="orders", partitions=gone),) if gone else ()
    return fetch_request.FetchRequest(
        max_wait=timedelta(milliseconds=wait),
        min_bytes=1,
        max_bytes=more.get("max_bytes", 1 << 20),
        session_id=session[0],
        session_epoch=session[1],
        topics=(fetch_request.FetchTopic(topic="orders", partitions=parts),) if parts else (),
        forgotten_topics_data=forgotten,
    )


def ask(broker: CoreUnderTest, message: Any, version: int = 12) -> Any:
    return broker.ask(Api.FETCH, message, version=version)


def begin(broker: CoreUnderTest, *partitions: int) -> int:
    """A new session; its number."""
    answer = ask(broker, turn((0, 0), dict.fromkeys(partitions or (0,), 0)))
    assert answer.error_code is ErrorCode.none
    return int(answer.session_id)


def high_watermarks(answer: Any) -> dict[int, int]:
    """Return the high watermarks of the partitions in a response."""
    return {part.partition_index: part.high_watermark for topic in answer.responses for part in topic.partitions}


def test_a_response_contains_only_partitions_with_changes(broker: CoreUnderTest) -> None:
    session = begin(broker, 0, 1)
    assert session > 0
    answer = ask(broker, turn((session, 1)))
    assert (answer.session_id, high_watermarks(answer)) == (session, {})
    produce(broker, batch(), partition=1)
    answer = ask(broker, turn((session, 2)))
    assert high_watermarks(answer) == {1: 1}
    assert answer.responses[0].partitions[0].records
    assert high_watermarks(ask(broker, turn((session, 3), {1: 1}))) == {}


def test_records_come_until_the_client_says_that_it_goes_on(broker: CoreUnderTest) -> None:
    session = begin(broker)
    produce(broker, batch())
    for epoch in (1, 2):
        assert ask(broker, turn((session, epoch))).responses[0].partitions[0].records
    assert high_watermarks(ask(broker, turn((session, 3), {0: 1}))) == {}


def test_partitions_are_added_and_forgotten(broker: CoreUnderTest) -> None:
    session = begin(broker)
    assert high_watermarks(ask(broker, turn((session, 1), {2: 0}))) == {2: 0}
    produce(broker, batch(), partition=0)
    produce(broker, batch(), partition=2)
    assert high_watermarks(ask(broker, turn((session, 2), gone=(0,)))) == {2: 1}


def test_a_session_without_partitions_ends(broker: CoreUnderTest) -> None:
    session = begin(broker)
    assert ask(broker, turn((session, 1), gone=(0,))).session_id == 0
    assert ask(broker, turn((session, 2))).error_code is ErrorCode.fetch_session_id_not_found


def test_an_error_is_in_every_response_and_its_end_is_a_change(broker: CoreUnderTest) -> None:
    session = begin(broker)
    assert high_watermarks(ask(broker, turn((session, 1), {0: 9}))) == {0: -1}
    assert high_watermarks(ask(broker, turn((session, 2)))) == {0: -1}
    assert high_watermarks(ask(broker, turn((session, 3), {0: 0}))) == {0: 0}


def test_that_records_were_deleted_is_news(broker: CoreUnderTest) -> None:
    session = begin(broker)
    produce(broker, batch())
    ask(broker, turn((session, 1)))
    assert high_watermarks(ask(broker, turn((session, 2), {0: 1}))) == {}
    delete_records(broker, -1)
    answer = ask(broker, turn((session, 3)))
    assert answer.responses[0].partitions[0].log_start_offset == 1
    assert high_watermarks(ask(broker, turn((session, 4)))) == {}


def test_a_parked_turn_speaks_of_what_has_come(broker: CoreUnderTest) -> None:
    session = begin(broker, 0, 1)
    ticket = broker.send(Api.FETCH, turn((session, 1), wait=500), version=12)
    produce(broker, batch(), partition=1)
    assert high_watermarks(broker.replies[ticket]) == {1: 1}
    ticket = broker.send(Api.FETCH, turn((session, 2), {1: 1}, wait=500), version=12)
    broker.pass_time(500)
    assert (broker.replies[ticket].session_id, high_watermarks(broker.replies[ticket])) == (session, {})


def test_who_ends_a_session_waits_for_no_records_any_more(broker: CoreUnderTest) -> None:
    session, other = begin(broker), begin(broker)
    parked = broker.send(Api.FETCH, turn((session, 1), wait=500), version=12)
    of_other = broker.send(Api.FETCH, turn((other, 1), wait=500), version=12)
    assert parked not in broker.replies
    last = broker.send(Api.FETCH, turn((session, -1)), version=12)
    assert broker.replies.keys() >= {parked, last}
    assert high_watermarks(broker.replies[parked]) == {}
    assert of_other not in broker.replies
    broker.pass_time(500)
    assert high_watermarks(broker.replies[of_other]) == {}


def test_who_was_given_records_is_looked_at_last(broker: CoreUnderTest) -> None:
    session = begin(broker, 0, 1)
    for partition in (0, 1):
        produce(broker, batch(size=500), partition=partition)
    firsts = [
        [part.partition_index for part in ask(broker, turn((session, epoch), max_bytes=10)).responses[0].partitions if part.records]
        for epoch in (1, 2, 3)
    ]
    assert firsts == [[0], [1], [0]]


@pytest.mark.parametrize(
    ("epoch", "version", "error"),
    [
        (2, 12, ErrorCode.invalid_fetch_session_epoch),
        (-2, 12, ErrorCode.invalid_fetch_session_epoch),
        (1, 13, ErrorCode.fetch_session_topic_id_error),
    ],
)
def test_a_turn_that_does_not_fit(broker: CoreUnderTest, epoch: int, version: int, error: ErrorCode) -> None:
    session = begin(broker)
    answer = ask(broker, turn((session, epoch)), version)
    assert (answer.error_code, answer.session_id, answer.responses) == (error, 0, ())
    assert ask(broker, turn((session, 1))).error_code is ErrorCode.none


def test_a_turn_that_was_overtaken(broker: CoreUnderTest) -> None:
    session = begin(broker)
    ticket = broker.send(Api.FETCH, turn((session, 1), wait=500), version=12)
    ask(broker, turn((session, 2)))
    broker.pass_time(500)
    assert broker.replies[ticket].error_code is ErrorCode.invalid_fetch_session_epoch


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_session_ends_when_its_client_begins_another(broker: CoreUnderTest, epoch: int) -> None:
    session = begin(broker)
    answer = ask(broker, turn((session, epoch), {0: 0}))
    assert (answer.error_code, high_watermarks(answer)) == (ErrorCode.none, {0: 0})
    assert (answer.session_id == 0) is (epoch == -1)
    assert ask(broker, turn((session, 1))).error_code is ErrorCode.fetch_session_id_not_found


def test_without_room_there_is_no_session_until_one_is_old(broker: CoreUnderTest) -> None:
    first, second = begin(broker), begin(broker)
    assert begin(broker) == 0
    broker.pass_time(100_000)
    ask(broker, turn((first, 1)))
    broker.pass_time(20_001)
    third = begin(broker)
    assert third not in (0, first, second)
    assert ask(broker, turn((second, 1))).error_code is ErrorCode.fetch_session_id_not_found
    assert ask(broker, turn((first, 2))).error_code is ErrorCode.none


def test_a_larger_session_takes_the_place_of_an_aged_smaller_one(broker: CoreUnderTest) -> None:
    first, second = begin(broker, 0, 1), begin(broker, 0)
    broker.pass_time(120_001)
    for session in (first, second):
        ask(broker, turn((session, 1)))
    assert begin(broker, 2) == 0
    assert begin(broker, 1, 2) > 0
    assert ask(broker, turn((second, 2))).error_code is ErrorCode.fetch_session_id_not_found


def test_there_are_no_sessions_while_a_fault_is_set(broker: CoreUnderTest) -> None:
    session = begin(broker)
    wrong = Fail(ErrorCode.not_leader_or_follower)
    broker.take(broker.core.on_command(AddFault(Rule(1, wrong, Match(topic="orders"))), broker.now)[1])
    assert ask(broker, turn((session, 1))).error_code is ErrorCode.fetch_session_id_not_found
    answer = ask(broker, turn((0, 0), {0: 0}))
    assert (answer.session_id, answer.responses[0].partitions[0].error_code) == (0, ErrorCode.not_leader_or_follower)
    assert begin(broker) > 0


class AClient(RuleBasedStateMachine):
    """A client that applies all answers, and adds and forgets partitions, has the same session state as the broker."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.broker = CoreUnderTest(Path(self.folder.name))
        create(self.broker, "orders", PARTITIONS)
        self.session = (0, 0)
        self.wanted: dict[int, int] = {}
        self.said: dict[int, int] = {}
        self.known: dict[int, tuple[int, int]] = {}

    def teardown(self) -> None:
        self.broker.kill()
        self.folder.cleanup()

    @rule(partition=st.integers(0, 1))
    def something_is_written(self, partition: int) -> None:
        produce(self.broker, batch(), partition=partition)

    @rule(partition=st.integers(0, 1))
    def records_are_deleted(self, partition: int) -> None:
        assert delete_records(self.broker, -1, partition=partition)[0] is ErrorCode.none

    @rule(partition=st.integers(0, 1))
    def a_partition_is_wanted(self, partition: int) -> None:
        self.wanted.setdefault(partition, self.broker.core.catalog.log("orders", partition).start_offset)

    @rule(partition=st.integers(0, 1))
    def a_partition_is_not_wanted(self, partition: int) -> None:
        self.wanted.pop(partition, None)

    @rule()
    def the_client_begins_another_session(self) -> None:
        self.session = (self.session[0], 0)

    @rule()
    def the_client_fetches(self) -> None:
        number, epoch = self.session
        if epoch == 0:
            self.said = {}
        changed = {partition: offset for partition, offset in self.wanted.items() if self.said.get(partition) != offset}
        gone = tuple(partition for partition in self.said if partition not in self.wanted)
        self.known = {
            partition: known for partition, known in self.known.items() if partition in self.said and partition not in gone
        }
        if not self.wanted and epoch == 0:
            return
        answer = ask(self.broker, turn((number, epoch), changed, gone))
        assert answer.error_code is ErrorCode.none
        self.said = dict(self.wanted)
        for topic in answer.responses:
            for data in topic.partitions:
                self.high_watermarks(data)
        self.session = (answer.session_id, epoch + 1) if answer.session_id else (0, 0)
        for partition, offset in self.wanted.items():
            log = self.broker.core.catalog.log("orders", partition)
            if self.said[partition] == offset >= log.start_offset:
                assert self.known[partition] == (log.end_offset, log.start_offset)

    def high_watermarks(self, data: Any) -> None:
        partition = data.partition_index
        if data.error_code:
            self.wanted[partition] = self.broker.core.catalog.log("orders", partition).start_offset
            return
        self.known[partition] = (data.high_watermark, data.log_start_offset)
        if data.records:
            self.wanted[partition] = data.high_watermark


AClient.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestAClient = AClient.TestCase
