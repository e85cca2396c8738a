"""The metadata of topics for a single call: ``partitions_for`` and ``list_topics``.

Owns those Metadata requests. Must not change the metadata that fetching uses. Invariant: a request never makes the broker create a
topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.metadata import Metadata, TopicMetadata, merge
from ottla.client.effects import AnyNode, AnySend, Poll, Send, Unreachable
from ottla.client.events import Reply
from ottla.config import ClientConfig
from ottla.errors import OttlaError, OttlaTimeoutError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import metadata_request, metadata_response
from ottla.types import Now


@dataclass(slots=True, eq=False)
class _TopicsCall:
    topics: frozenset[str] | None
    deadline: int
    reply: Reply
    in_flight: bool = False
    attempts: int = 0
    not_before: int = 0
    failure: OttlaError | None = None


class TopicsManager:
    """The open calls about topics. ``unreachable`` returns why no broker is connected, for the error of a call that timed out."""

    def __init__(self, config: ClientConfig, backoff: ExponentialBackoff, unreachable: Unreachable) -> None:
        self._config = config
        self._backoff = backoff
        self._unreachable = unreachable
        self._calls: list[_TopicsCall] = []

    def describe(self, topics: frozenset[str] | None, deadline: int, reply: Reply) -> None:
        """Call ``reply`` with a mapping from name to ``TopicMetadata``. ``topics=None``: all topics; of others, one that does not
        exist is an error.
        """
        self._calls.append(_TopicsCall(topics, deadline, reply))

    def poll(self, now: Now) -> Poll:
        """Send the requests that are due, and end calls past their deadline."""
        if not self._calls:
            return Poll()
        for call in [item for item in self._calls if item.deadline <= now.mono and not item.in_flight]:
            self._finish(call, self._timeout_error(call))
        due = [call for call in self._calls if not call.in_flight and call.not_before <= now.mono]
        sends = [self._send(call, now) for call in due]
        for call in due:
            call.in_flight = True
        times = [at for item in self._calls if not item.in_flight for at in (item.deadline, item.not_before) if at > now.mono]
        return Poll(tuple(sends), min(times, default=None))

    def _send(self, call: _TopicsCall, now: Now) -> AnySend:
        timeout = max(1, min(self._config.request_timeout_ms, call.deadline - now.mono))
        return Send(
            rpcs.METADATA,
            _request(call.topics),
            AnyNode(),
            timeout,
            lambda response, now: self._on_response(call, response, now),
            lambda error, now: self._on_failure(call, error, now),
        )

    def _on_response(self, call: _TopicsCall, response: metadata_response.MetadataResponse, now: Now) -> None:
        """End the call, or retry after an error that is temporary, such as a topic without a leader."""
        call.in_flight = False
        if response.error_code:
            return self._retry(call, broker_error(int(response.error_code), "the broker refused to describe topics"), now)
        topics = merge(Metadata(), response).topics
        if call.topics is None:
            return self._finish(call, None, {name: topic for name, topic in topics.items() if topic.error is None})
        for name in sorted(call.topics):
            topic = topics.get(name)
            if topic is not None and topic.error is not None:
                unknown = topic.error.code == ErrorCode.unknown_topic_or_partition
                return self._finish(call, topic.error) if unknown else self._retry(call, topic.error, now)
        return self._finish(call, None, dict(topics))

    def _on_failure(self, call: _TopicsCall, error: OttlaError, now: Now) -> None:
        """Retry, with any broker."""
        call.in_flight = False
        self._retry(call, error, now)

    def _retry(self, call: _TopicsCall, error: OttlaError, now: Now) -> None:
        call.failure = error
        if not error.retriable:
            return self._finish(call, error)
        call.not_before = now.mono + self._backoff.delay(call.attempts)
        call.attempts += 1
        return None

    def _timeout_error(self, call: _TopicsCall) -> OttlaError:
        reason = self._unreachable() or call.failure
        if reason is not None and not isinstance(reason, OttlaTimeoutError):
            return reason
        return OttlaTimeoutError(f"no broker described the topics in time: {reason or 'no answer'}")

    def _finish(self, call: _TopicsCall, error: OttlaError | None, value: Mapping[str, TopicMetadata] | None = None) -> None:
        self._calls.remove(call)
        call.reply(value, error)


def _request(topics: frozenset[str] | None) -> metadata_request.MetadataRequest:
    named = (
        None
        if topics is None
        else tuple(metadata_request.MetadataRequestTopic(topic_id=None, name=name) for name in sorted(topics))
    )
    return metadata_request.MetadataRequest(
        topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
