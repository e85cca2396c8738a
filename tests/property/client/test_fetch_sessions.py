"""A client's fetch session against a broker's: they agree on the partitions, or begin a new session.

Both are the real ones. After each response the broker's session must contain what the request
stood for. Sessions are evicted, answers are lost, topics are recreated and lose their ids, epochs come to their end.
"""

from __future__ import annotations

import uuid
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.broker.fetch_sessions import FetchSessionCache
from ottla.client.fetch.session import (
    FINAL_EPOCH,
    LAST_EPOCH,
    FetchSession,
    SessionPhase,
    SessionRequest,
    Wanted,
    fetch_request,
    partitions_of,
)
from ottla.coordinator.effects import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.messages import fetch_response
from ottla.types import Now, TopicPartition
from tests.example_counts import examples
from tests.unit.client.managers import config

PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(3)]
tps = st.sampled_from(PARTITIONS)
NOW = Now(0, 0)


class Sessions(RuleBasedStateMachine):
    """One client, one broker with two session slots, and another client that takes slots."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0
        self.broker = FetchSessionCache(2, self.new_id)
        self.client = FetchSession()
        self.ids: dict[str, uuid.UUID | None] = {"a": uuid.UUID(int=1), "b": uuid.UUID(int=2)}
        self.offsets: dict[TopicPartition, int] = {}
        self.highs: dict[TopicPartition, int] = {}

    def new_id(self) -> uuid.UUID:
        self.numbers += 1
        return uuid.UUID(int=self.numbers)

    def high(self, topic: str, partition: int) -> int:
        return self.highs.get(TopicPartition(topic, partition), 0)

    def wanted(self, tp: TopicPartition) -> Wanted:
        return Wanted(self.offsets[tp], 0, self.ids[tp.topic], 1 << 20)

    @initialize()
    def begin(self) -> None:
        self.want(PARTITIONS[0], 0)

    @rule(tp=tps, offset=st.integers(0, 3))
    def want(self, tp: TopicPartition, offset: int) -> None:
        self.offsets[tp] = offset
        self.client.want(tp, self.wanted(tp))

    @rule(tp=tps)
    def drop(self, tp: TopicPartition) -> None:
        self.offsets.pop(tp, None)
        self.client.drop(tp)

    @rule(topic=st.sampled_from(["a", "b"]), known=st.booleans())
    def make_anew(self, topic: str, known: bool) -> None:
        self.ids[topic] = self.new_id() if known else None
        for tp in self.offsets:
            self.client.want(tp, self.wanted(tp))

    @rule(count=st.integers(1, 2))
    def others_take_the_room(self, count: int) -> None:
        for _ in range(count):
            other = FetchSession()
            other.want(PARTITIONS[0], Wanted(0, 0, uuid.UUID(int=99), 1 << 20))
            self.carry(other.request(), keep=True)

    @rule()
    def evict(self) -> None:
        self.broker.clear()

    @precondition(lambda self: self.client.phase is SessionPhase.OPEN)
    @rule()
    def come_to_the_last_epoch(self) -> None:
        session = self.broker._sessions.get(self.client._session_id)
        if session is not None:
            session.epoch = self.client._epoch = LAST_EPOCH

    @precondition(lambda self: self.offsets)
    @rule(lost=st.sampled_from(["nothing", "nothing", "nothing", "request", "answer"]), news=st.sets(tps))
    def fetch(self, lost: str, news: set[TopicPartition]) -> None:
        for tp in news:
            self.highs[tp] = self.highs.get(tp, 0) + 1
        request = self.client.request()
        assert dict(request.all) == {tp: self.wanted(tp) for tp in self.offsets}
        message = self.carry(request, keep=lost != "request")
        if lost != "nothing":
            return self.client.failed()
        answered = [tp for tp, _ in partitions_of(message, self.client.names)]
        if self.client.answered(request, int(message.error_code), message.session_id, answered) and message.session_id:
            held = {
                (topic_id or name, number): part.wanted.fetch_offset
                for (topic_id, name, number), part in self.broker._sessions[message.session_id].partitions.items()
            }
            told = {((wanted.topic_id if request.by_id else None) or tp.topic, tp.partition): wanted.offset
                    for tp, wanted in request.all.items()}  # fmt: skip
            assert held == told
        return None

    def carry(self, session: SessionRequest, *, keep: bool) -> Any:
        """Send a request and return the response. Names and ids are on the wire only where the version of the request has them."""
        if not keep:
            return None
        request = fetch_request(config(), session, 1_000)
        named: tuple[Any, ...] = (*request.topics, *request.forgotten_topics_data)
        by_id = all(topic.topic_id for topic in named)
        assert by_id is session.by_id or session.epoch == FINAL_EPOCH
        try:
            whole = self.broker.full_request(_on_wire(request, by_id), by_id, NOW)
        except ApiError as api_error:
            return _answer((), code=api_error.code)
        topics = tuple(
            fetch_response.FetchableTopicResponse(
                topic_id=topic.topic_id,
                topic=topic.topic,
                partitions=tuple(
                    _data(part.partition, self.highs.get(TopicPartition(topic.topic, part.partition), 0))
                    for part in topic.partitions
                ),
            )
            for topic in whole.topics
        )
        return self.broker.incremental_response(whole, by_id, _answer(topics), NOW)

    @precondition(lambda self: self.client.phase is SessionPhase.OPEN)
    @rule()
    def end(self) -> None:
        last = self.client.end()
        assert last is not None
        self.carry(last, keep=True)
        assert last.session_id not in self.broker._sessions
        self.client = FetchSession()
        for tp in self.offsets:
            self.client.want(tp, self.wanted(tp))

    @invariant()
    def what_is_wanted_is_what_the_next_request_stands_for(self) -> None:
        assert self.client.wanted == {tp: self.wanted(tp) for tp in self.offsets}


def _on_wire(request: Any, by_id: bool) -> Any:
    from dataclasses import replace

    left_out = {"topic": ""} if by_id else {"topic_id": None}
    return replace(
        request,
        topics=tuple(replace(topic, **left_out) for topic in request.topics),
        forgotten_topics_data=tuple(replace(topic, **left_out) for topic in request.forgotten_topics_data),
    )


def _answer(topics: tuple[Any, ...], code: ErrorCode = ErrorCode.none) -> Any:
    return fetch_response.FetchResponse(throttle_time=NO_THROTTLE, error_code=code, session_id=0, responses=topics)


def _data(number: int, high: int) -> Any:
    return fetch_response.PartitionData(
        partition_index=number, error_code=ErrorCode.none, high_watermark=high, aborted_transactions=None, records=b""
    )


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
