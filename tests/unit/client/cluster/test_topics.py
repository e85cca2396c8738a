"""Questions about topics: asked of any broker, retried while brokers make up their minds, never creating anything."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.cluster.topics import TopicsManager
from ottla.client.effects import AnyNode
from ottla.errors import DisconnectedError, OttlaTimeoutError, error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from tests.unit.client.managers import T0, Asked, Replies, backoff, config, metadata_answer


class Topics(Asked):
    def __init__(self) -> None:
        self.unreachable: Any = None
        super().__init__(TopicsManager(config(), backoff(), lambda *_: self.unreachable))
        self.manager: TopicsManager

    def describe(self, *topics: str, deadline: int = 1_000) -> Replies:
        replies = Replies()
        self.manager.describe(frozenset(topics) if topics else None, deadline, replies)
        return replies


@pytest.fixture
def topics() -> Topics:
    return Topics()


def test_named_topics_are_described(topics: Topics) -> None:
    replies = topics.describe("t")
    send = topics.one(Api.METADATA)
    assert send.target == AnyNode()
    assert [topic.name for topic in send.message.topics] == ["t"]
    assert send.message.allow_auto_topic_creation is False
    topics.answer(send, metadata_answer({T0: 1}))
    assert [info.leader for info in replies.value["t"].partitions] == [1]


def test_all_topics_are_those_without_errors(topics: Topics) -> None:
    replies = topics.describe()
    send = topics.one(Api.METADATA)
    assert send.message.topics is None
    topics.answer(send, metadata_answer({T0: 1}, errors={"hidden": 29}))
    assert list(replies.value) == ["t"]


@pytest.mark.parametrize(
    "code", [ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception, ErrorCode.topic_authorization_failed]
)
def test_a_topic_that_cannot_be_described_is_an_error_at_once(topics: Topics, code: int) -> None:
    replies = topics.describe("t")
    topics.answer(topics.one(Api.METADATA), metadata_answer({}, errors={"t": code}))
    assert type(replies.error) is error_class(code)


def test_temporary_errors_are_retried(topics: Topics) -> None:
    replies = topics.describe("t", deadline=10_000)
    topics.answer(topics.one(Api.METADATA), metadata_answer({}, errors={"t": 5}))
    assert topics.poll(99) == []
    topics.fail(topics.one(Api.METADATA, 100), DisconnectedError("broke"))
    topics.answer(topics.one(Api.METADATA, 300), metadata_answer({T0: 2}))
    assert replies.value


def test_the_timeout_error_has_a_reason(topics: Topics) -> None:
    replies = topics.describe("t", deadline=150)
    topics.fail(topics.one(Api.METADATA), DisconnectedError("broke"))
    assert topics.poll() == []
    assert topics.wake_at == 100
    send = topics.one(Api.METADATA, 100)
    assert send.timeout == 50
    topics.fail(send, OttlaTimeoutError("late"))
    assert topics.poll(150) == []
    assert isinstance(replies.error, OttlaTimeoutError)
    topics.unreachable = DisconnectedError("connection refused")
    replies = topics.describe("t", deadline=200)
    topics.fail(topics.one(Api.METADATA), DisconnectedError("broke"))
    topics.poll(200)
    assert replies.error is topics.unreachable
