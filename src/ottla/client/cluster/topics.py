"""Questions about topics that a call asks and then forgets: ``partitions_for`` and ``list_topics``.

Owns those Metadata requests. Must not touch the metadata that fetching lives on. Invariant: asking never makes the broker create
a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.metadata import Metadata, TopicMetadata, merge
from ottla.client.commands import Reply
from ottla.client.effects import AnyNode, AnySend, Poll, Send, Unreachable
from ottla.config import ClientConfig
from ottla.errors import OttlaError, OttlaTimeoutError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import metadata_request, metadata_response
from ottla.types import Now


@dataclass(slots=True, eq=False)
class _Question:
    topics: frozenset[str] | None
    deadline: int
    reply: Reply
    in_flight: bool = False
    attempts: int = 0
    not_before: int = 0
    failure: OttlaError | None = None


class TopicsManager:
    """See the module. ``unreachable`` says why no broker is connected, for the error of a question that came too late."""

    def __init__(self, config: ClientConfig, backoff: ExponentialBackoff, unreachable: Unreachable) -> None:
        self._config = config
        self._backoff = backoff
        self._unreachable = unreachable
        self._questions: list[_Question] = []

    def describe(self, topics: frozenset[str] | None, deadline: int, reply: Reply) -> None:
        """``reply`` with a mapping from name to ``TopicMetadata``; a topic that does not exist is an error, unless all are asked
        for."""
        self._questions.append(_Question(topics, deadline, reply))

    def poll(self, now: Now) -> Poll:
        """Ask what was not asked yet, or has to be asked again."""
        if not self._questions:
            return Poll()
        for question in [item for item in self._questions if item.deadline <= now.mono and not item.in_flight]:
            self._finish(question, self._too_late(question))
        due = [question for question in self._questions if not question.in_flight and question.not_before <= now.mono]
        sends = [self._send(question, now) for question in due]
        for question in due:
            question.in_flight = True
        times = [at for item in self._questions if not item.in_flight for at in (item.deadline, item.not_before) if at > now.mono]
        return Poll(tuple(sends), min(times, default=None))

    def _send(self, question: _Question, now: Now) -> AnySend:
        timeout = max(1, min(self._config.request_timeout_ms, question.deadline - now.mono))
        return Send(
            rpcs.METADATA,
            _request(question.topics),
            AnyNode(),
            timeout,
            lambda response, now: self._on_response(question, response, now),
            lambda error, now: self._on_failure(question, error, now),
        )

    def _on_response(self, question: _Question, response: metadata_response.MetadataResponse, now: Now) -> None:
        """Answer, or ask again while brokers are still making up their minds."""
        question.in_flight = False
        if response.error_code:
            return self._retry(question, broker_error(int(response.error_code), "the broker refused to describe topics"), now)
        topics = merge(Metadata(), response).topics
        if question.topics is None:
            return self._finish(question, None, {name: topic for name, topic in topics.items() if topic.error is None})
        for name in sorted(question.topics):
            topic = topics.get(name)
            if topic is not None and topic.error is not None:
                unknown = topic.error.code == ErrorCode.unknown_topic_or_partition
                return self._finish(question, topic.error) if unknown else self._retry(question, topic.error, now)
        return self._finish(question, None, dict(topics))

    def _on_failure(self, question: _Question, error: OttlaError, now: Now) -> None:
        """Try another broker."""
        question.in_flight = False
        self._retry(question, error, now)

    def _retry(self, question: _Question, error: OttlaError, now: Now) -> None:
        question.failure = error
        if not error.retriable:
            return self._finish(question, error)
        question.not_before = now.mono + self._backoff.delay(question.attempts)
        question.attempts += 1
        return None

    def _too_late(self, question: _Question) -> OttlaError:
        reason = self._unreachable() or question.failure
        if reason is not None and not isinstance(reason, OttlaTimeoutError):
            return reason
        return OttlaTimeoutError(f"no broker described the topics in time: {reason or 'no answer'}")

    def _finish(self, question: _Question, error: OttlaError | None, value: Mapping[str, TopicMetadata] | None = None) -> None:
        self._questions.remove(question)
        question.reply(value, error)


def _request(topics: frozenset[str] | None) -> metadata_request.MetadataRequest:
    named = (
        None
        if topics is None
        else tuple(metadata_request.MetadataRequestTopic(topic_id=None, name=name) for name in sorted(topics))
    )
    return metadata_request.MetadataRequest(
        topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
