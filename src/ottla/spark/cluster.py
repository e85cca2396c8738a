"""The planner's view of a Kafka cluster: partitions, the first and end offsets of logs, and the committed offsets of a group.

Owns its ``Consumer``s, created when first needed and never pickled, and the retries. Must not know what is planned. Invariant: a
lookup is retried after a retriable error until the client's own ``default.api.timeout.ms`` has elapsed; then the error is raised.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla import errors
from ottla.client.cluster.metadata import TopicMetadata
from ottla.consumer import Consumer
from ottla.errors import ConfigError, OttlaError
from ottla.spark.client_settings import PLANNER_SETTINGS, with_option_names
from ottla.spark.offsets import NAMED, Offsets, TopicIds
from ottla.spark.options import SourceOptions
from ottla.types import OffsetAndMetadata, TopicPartition, short_list, uuid_text

log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_API_TIMEOUT_MS = "60000"
"""The default of ``default.api.timeout.ms``."""

RETRY_PAUSE = 0.1
"""Seconds between two attempts."""

MISSING_TIMEOUT = 5.0
"""Seconds after which a topic or partition that is not in the metadata counts as missing: those of a broker that has just been
started may be incomplete."""

MAX_NAMED_TOPICS = 3
"""Up to so many topics are looked up by name; more with one request for all topics of the cluster."""


def api_timeout(options: SourceOptions) -> float:
    """Seconds for which one lookup is retried."""
    return float(dict(options.client).get("default.api.timeout.ms", DEFAULT_API_TIMEOUT_MS)) / 1000


def describe_topics(consumer: Consumer, names: Sequence[str], timeout: float) -> dict[str, TopicMetadata]:
    """Return those of the topics that exist. One that does not fails the request for all: then each is looked up by itself."""
    if not names:
        return {}
    if len(names) > MAX_NAMED_TOPICS:
        return described(names, consumer._describe_topics(None, timeout), consumer, timeout)
    try:
        return dict(consumer._describe_topics(names, timeout))
    except errors.UnknownTopicOrPartitionError:
        if len(names) == 1:
            return {}
    return {name: topic for each in names for name, topic in describe_topics(consumer, [each], timeout).items()}


def described(
    names: Sequence[str], known: Mapping[str, TopicMetadata], consumer: Consumer, timeout: float
) -> dict[str, TopicMetadata]:
    """Return those of the topics that exist. ``known``: all topics of the cluster, as a broker has answered.

    It leaves out topics without their leaders, and those that this client may not describe. The rights to read a topic may be gone
    for a moment; that is no reason to take it for deleted. So each topic that is missing is asked for by its name.
    """
    found = {name: known[name] for name in names if name in known}
    for name in names:
        if name not in known:
            found |= describe_topics(consumer, [name], timeout)
    return found


def _retried(
    look_up: Callable[[], list[TopicPartition]], is_complete: Callable[[list[TopicPartition]], bool]
) -> list[TopicPartition]:
    deadline = time.monotonic() + MISSING_TIMEOUT
    while True:
        found = look_up()
        if is_complete(found) or time.monotonic() + RETRY_PAUSE >= deadline:
            return found
        time.sleep(RETRY_PAUSE)


class Cluster:
    """The cluster that the options name. A context manager; usable again after ``close()``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer: Consumer | None = None
        self._uncommitted_consumer: Consumer | None = None
        self._has_warned = False
        self.topic_ids: TopicIds = {}
        """The ids of the selected topics, when their partitions were last looked up."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_consumer": None, "_uncommitted_consumer": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        consumers, self._consumer, self._uncommitted_consumer = (self._consumer, self._uncommitted_consumer), None, None
        for consumer in consumers:
            if consumer is not None:
                with contextlib.suppress(OttlaError):
                    consumer.close()

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions that the options select, sorted.

        Raises ``ConfigError`` if a topic or partition in the options does not exist, after ``MISSING_TIMEOUT``.
        """
        subscription = self._options.subscription
        named, assigned = set(subscription.topics), set(subscription.partitions)
        existing = _retried(
            self._existing_partitions, lambda found: named <= {tp.topic for tp in found} and assigned.issubset(found)
        )
        topics = {tp.topic for tp in existing}
        if missing := [topic for topic in subscription.topics if topic not in topics]:
            raise ConfigError(f"topic {short_list(missing, NAMED)} does not exist", hint="create it first, or check the name")
        if absent := sorted(assigned.difference(existing)):
            raise ConfigError(f"option assign names partitions that do not exist: {short_list(absent, NAMED)}")
        return existing

    def await_partitions(self, expected: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return all existing partitions that the options select, sorted. If one of ``expected`` is missing, retry for
        ``MISSING_TIMEOUT``."""
        wanted = {tp for tp in expected if self._options.subscription.includes(tp)}
        names = sorted({tp.topic for tp in wanted})
        return _retried(lambda: self._existing_partitions(names), wanted.issubset)

    def await_existing(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return those of the partitions that exist, whatever the options select, sorted. If one is missing, retry for
        ``MISSING_TIMEOUT``."""
        names, wanted = sorted({tp.topic for tp in partitions}), set(partitions)

        def look_up() -> list[TopicPartition]:
            topics = self._retry(lambda consumer, timeout: describe_topics(consumer, names, timeout)).values()
            found = {TopicPartition(topic.name, info.partition) for topic in topics for info in topic.partitions}
            return sorted(wanted & found)

        return _retried(look_up, lambda found: wanted.issubset(found))

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset in the log of each partition."""
        wanted = list(partitions)
        return self._retry(lambda consumer, timeout: consumer.beginning_offsets(wanted, timeout=timeout)) if wanted else {}

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition for this query: the high watermark, or with ``read_committed`` the last stable
        offset."""
        wanted = list(partitions)
        return self._retry(lambda consumer, timeout: consumer.end_offsets(wanted, timeout=timeout)) if wanted else {}

    def log_end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition, whatever the isolation level."""
        wanted = list(partitions)
        if not (wanted and self._options.read_committed):
            return self.latest(wanted)
        if self._uncommitted_consumer is None:
            self._uncommitted_consumer = Consumer(
                {**PLANNER_SETTINGS, **dict(self._options.client), "isolation.level": "read_uncommitted"}
            )
        uncommitted = self._uncommitted_consumer
        return self._retry(lambda _, timeout: uncommitted.end_offsets(wanted, timeout=timeout))

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a timestamp (ms), for partitions that have one."""
        found = self._retry(lambda consumer, timeout: consumer.offsets_for_times(times, timeout=timeout)) if times else {}
        return {tp: each.offset for tp, each in found.items() if each is not None}

    def of_group(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed offsets, of partitions that have one."""
        wanted = list(partitions)
        found = self._retry(lambda consumer, timeout: consumer.committed(*wanted, timeout=timeout)) if wanted else {}
        return {tp: each.offset for tp, each in found.items() if each is not None}

    def committed(self, partitions: Iterable[TopicPartition], *, timeout: float) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets."""
        return self._client().committed(*partitions, timeout=timeout)

    def commit(self, offsets: Offsets, *, metadata: str, timeout: float) -> None:
        """Commit ``offsets`` to the group, without joining it."""
        committed = {tp: OffsetAndMetadata(offset, metadata=metadata) for tp, offset in offsets.items()}
        self._client().commit(committed, timeout=timeout)

    def _existing_partitions(self, expected: Sequence[str] = ()) -> list[TopicPartition]:
        """Return the existing partitions that the options select. ``expected``: topics that a pattern has matched before."""
        subscription = self._options.subscription
        if subscription.pattern is None:
            named = sorted({*subscription.topics, *(tp.topic for tp in subscription.partitions)})
            found = list(self._retry(lambda consumer, timeout: describe_topics(consumer, named, timeout)).values())
        else:
            known = self._retry(lambda consumer, timeout: consumer._describe_topics(None, timeout))
            old = self._retry(lambda consumer, timeout: described(expected, known, consumer, timeout))
            found = [topic for name, topic in {**known, **old}.items() if subscription.matches(name) and not topic.is_internal]
        existing = sorted(TopicPartition(topic.name, info.partition) for topic in found for info in topic.partitions)
        self.topic_ids = {topic.name: uuid_text(topic.topic_id) for topic in found if topic.topic_id is not None}
        if not existing and subscription.pattern is not None and not self._has_warned:
            self._has_warned = True
            log.warning(
                "option subscribePattern %r matches no topic that this client may describe, so there is nothing to read",
                subscription.pattern,
            )
        return [tp for tp in existing if tp in subscription.partitions] if subscription.partitions else existing

    def _client(self) -> Consumer:
        if self._consumer is None:
            group = {} if self._options.group_id is None else {"group.id": self._options.group_id}
            self._consumer = Consumer({**PLANNER_SETTINGS, **dict(self._options.client), **group})
        return self._consumer

    def _retry(self, lookup: Callable[[Consumer, float], T]) -> T:
        """Call ``lookup(consumer, timeout)`` until it succeeds, raises an error that is not retriable, or times out."""
        client = self._client()
        deadline = time.monotonic() + api_timeout(self._options)
        while True:
            try:
                return lookup(client, max(0.0, deadline - time.monotonic()))
            except errors.UnknownTopicOrPartitionError:
                raise
            except OttlaError as error:
                if not error.retriable or time.monotonic() + RETRY_PAUSE >= deadline:
                    raise with_option_names(error) from error.__cause__
                log.info("retrying after: %s", error)
                time.sleep(RETRY_PAUSE)
