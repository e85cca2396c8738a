"""A parked fetch gets the same response as a new one, although only changed logs were read meanwhile.

A reader at the end of the log gets its current offsets, although most of the response is cached.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import fetch_request
from tests.example_counts import examples
from tests.simulation.broker import CoreUnderTest
from tests.simulation.files import content
from tests.unit.broker.harness import batch
from tests.unit.broker.requests import create, delete as delete_topic, delete_records, produce
from tests.unit.broker.transactional import Producer

PARTITIONS = 3
WAIT = 500
PARTITION = st.integers(0, PARTITIONS - 1)


class Readers(RuleBasedStateMachine):
    """Readers of a topic that is written to, in transactions or not, truncated, deleted and recreated."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.broker = CoreUnderTest(Path(self.folder.name))
        self.parked: dict[int, fetch_request.FetchRequest] = {}
        self.exists = False
        self.producer = Producer(self.broker)
        assert self.producer.init() is ErrorCode.none
        self.the_topic_is_made()

    def teardown(self) -> None:
        self.broker.kill()
        self.folder.cleanup()

    @precondition(lambda self: not self.exists)
    @rule()
    def the_topic_is_made(self) -> None:
        create(self.broker, "orders", PARTITIONS)
        self.exists = True

    @precondition(lambda self: self.exists)
    @rule()
    def the_topic_is_given_up(self) -> None:
        delete_topic(self.broker, "orders")
        self.exists = False

    @precondition(lambda self: self.exists)
    @rule(partition=PARTITION, count=st.integers(1, 3))
    def something_is_written(self, partition: int, count: int) -> None:
        produce(self.broker, batch(count), partition=partition)

    @precondition(lambda self: self.exists)
    @rule(partition=PARTITION)
    def a_transaction_writes(self, partition: int) -> None:
        self.producer.write(partition, topic="orders")

    @rule(commit=st.booleans())
    def the_transaction_ends(self, commit: bool) -> None:
        self.producer.end(commit=commit)

    @precondition(lambda self: self.exists)
    @rule(partition=PARTITION)
    def records_are_deleted(self, partition: int) -> None:
        delete_records(self.broker, -1, partition=partition)

    @precondition(lambda self: self.exists)
    @rule(
        back=st.tuples(*[st.sampled_from([0, 0, 0, 1, 2])] * PARTITIONS),
        limits=st.sampled_from([(1, 1 << 20), (150, 1 << 20), (10_000, 1 << 20), (10_000, 100)]),
        committed=st.booleans(),
    )
    def somebody_fetches(self, back: tuple[int, ...], limits: tuple[int, int], committed: bool) -> None:
        logs = [self.broker.core.catalog.log("orders", number) for number in range(PARTITIONS)]
        parts = tuple(
            fetch_request.FetchPartition(
                partition=number,
                fetch_offset=max(log.start_offset, log.end_offset - less),
                partition_max_bytes=limits[1],
            )
            for number, (log, less) in enumerate(zip(logs, back, strict=True))
        )
        request = fetch_request.FetchRequest(
            max_wait=timedelta(milliseconds=WAIT),
            min_bytes=limits[0],
            max_bytes=limits[1],
            isolation_level=1 if committed else 0,
            session_id=0,
            session_epoch=-1,
            topics=(fetch_request.FetchTopic(topic="orders", partitions=parts),),
            forgotten_topics_data=(),
        )
        self.parked[self.broker.send(Api.FETCH, request, version=12)] = request

    @rule(milliseconds=st.sampled_from([1, WAIT // 2, WAIT]))
    def time_passes(self, milliseconds: int) -> None:
        self.broker.pass_time(milliseconds)

    @invariant()
    def who_waited_is_answered_as_who_did_not(self) -> None:
        for ticket, request in list(self.parked.items()):
            if ticket in self.broker.replies:
                del self.parked[ticket]
                assert told(self.broker.replies[ticket]) == told(self._asked_now(request))

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        for request in [request for ticket, request in self.parked.items() if ticket not in self.broker.replies]:
            there = sum(len(data.records or b"") for data in self._asked_now(request).responses[0].partitions)
            assert there < min(request.min_bytes, request.max_bytes)

    @invariant()
    def who_has_read_all_is_told_where_the_log_stands(self) -> None:
        for request in self.parked.values() if self.exists else ():
            for data in self._asked_now(request).responses[0].partitions:
                log = self.broker.core.catalog.log("orders", data.partition_index)
                if not data.error_code:
                    stands = (log.high_watermark, log.last_stable_offset, log.start_offset)
                    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == stands
                    assert (data.aborted_transactions is None) is (request.isolation_level == 0)

    def _asked_now(self, request: fetch_request.FetchRequest) -> Any:
        return self.broker.ask(Api.FETCH, replace(request, max_wait=timedelta(0)), version=12)


def told(answer: Any) -> list[object]:
    """The parts of a response that a client can observe."""
    return [
        (
            data.partition_index,
            data.error_code,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            data.aborted_transactions,
            content(data.records) if data.records else b"",
        )
        for topic in answer.responses
        for data in topic.partitions
    ]


Readers.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestReaders = Readers.TestCase
