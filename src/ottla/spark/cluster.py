"""What a planner asks of a Kafka cluster, and what it tells it: partitions, where logs begin and end, a group's progress.

Owns one ``Consumer``, made when first needed and never pickled, and the patience with it. Must not know what is planned.
Invariant: a question is asked again while its error may pass, until the client's own ``default.api.timeout.ms`` is over; then that
error is raised.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla import errors
from ottla.consumer import Consumer
from ottla.errors import ConfigError, OttlaError
from ottla.spark.offsets import Offsets
from ottla.spark.options import SourceOptions
from ottla.types import OffsetAndMetadata, PartitionInfo, TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

PLANNER = {"enable.auto.commit": "false", "auto.offset.reset": "none", "allow.auto.create.topics": "false"}
"""Settings of the planner's client, before the user's."""

DEFAULT_PATIENCE = "60000"
"""The default of ``default.api.timeout.ms``."""

PAUSE = 0.1
"""Seconds between two attempts."""

MISSING = 5.0
"""Seconds for which a partition must not be found before it is gone."""

FEW = 3
"""Topics that are asked for one by one; if there are more, all of the cluster's come in one answer."""


def patience(options: SourceOptions) -> float:
    """Seconds for which one question is asked again."""
    return float(dict(options.client).get("default.api.timeout.ms", DEFAULT_PATIENCE)) / 1000


class Cluster:
    """The planner's view of the cluster that the options name. A context manager; may be used again after ``close()``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer: Consumer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_consumer": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all connections."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(OttlaError):
                consumer.close()

    def partitions(self) -> list[TopicPartition]:
        """All partitions that the options subscribe to, in order.

        Raises ``ConfigError`` for a topic or partition that is named and does not exist.
        """
        subscription = self._options.subscription
        existing = self._look()
        topics = {tp.topic for tp in existing}
        if missing := [topic for topic in subscription.topics if topic not in topics]:
            raise ConfigError(f"topic {', '.join(missing)} does not exist", hint="create it first, or check the name")
        if absent := sorted(set(subscription.partitions).difference(existing)):
            raise ConfigError(f"option assign names {', '.join(map(str, absent))}, which does not exist")
        return existing

    def partitions_left(self, expected: Iterable[TopicPartition]) -> list[TopicPartition]:
        """As ``partitions()``, without those that do not exist any more.

        One of ``expected`` that is missing is looked for again for a while: a broker that has just started does not know all yet.
        """
        deadline = time.monotonic() + MISSING
        wanted = set(expected)
        while True:
            existing = self._look()
            if wanted <= set(existing) or time.monotonic() + PAUSE >= deadline:
                return existing
            time.sleep(PAUSE)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the logs of ``partitions`` begin."""
        wanted = list(partitions)
        return self._ask(lambda consumer, timeout: consumer.beginning_offsets(wanted, timeout=timeout)) if wanted else {}

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where they end: the offset that the next record gets."""
        wanted = list(partitions)
        return self._ask(lambda consumer, timeout: consumer.end_offsets(wanted, timeout=timeout)) if wanted else {}

    def commit(self, offsets: Offsets, *, timeout: float) -> None:
        """Tell the group, without being a member of it, that all before ``offsets`` is done with."""
        self._client().commit({tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}, timeout=timeout)

    def _look(self) -> list[TopicPartition]:
        """The partitions subscribed to that exist."""
        subscription = self._options.subscription
        named = sorted({*subscription.topics, *(tp.topic for tp in subscription.partitions)})
        if subscription.pattern is None and len(named) <= FEW:
            found = {topic: self._partitions_of(topic) for topic in named}
        else:
            known = self._ask(lambda consumer, timeout: consumer.list_topics(timeout=timeout))
            found = {topic: known[topic] for topic in sorted(known) if topic in named or subscription.matches(topic)}
        existing = sorted(TopicPartition(topic, info.partition) for topic, infos in found.items() for info in infos)
        return [tp for tp in existing if tp in subscription.partitions] if subscription.partitions else existing

    def _partitions_of(self, topic: str) -> list[PartitionInfo]:
        try:
            return self._ask(lambda consumer, timeout: consumer.partitions_for(topic, timeout=timeout))
        except errors.UnknownTopicOrPartitionError:
            return []

    def _client(self) -> Consumer:
        if self._consumer is None:
            group = {} if self._options.group_id is None else {"group.id": self._options.group_id}
            self._consumer = Consumer({**PLANNER, **dict(self._options.client), **group})
        return self._consumer

    def _ask(self, question: Callable[[Consumer, float], T]) -> T:
        """Ask until there is an answer, or an error that does not pass, or patience is over."""
        client = self._client()
        deadline = time.monotonic() + patience(self._options)
        while True:
            try:
                return question(client, max(0.0, deadline - time.monotonic()))
            except errors.UnknownTopicOrPartitionError:
                raise
            except OttlaError as error:
                if not error.retriable or time.monotonic() + PAUSE >= deadline:
                    raise
                log.info("asking again: %s", error)
                time.sleep(PAUSE)


class Progress:
    """Keeps a group's committed offsets in step with a stream, for lag monitoring. Never raises: Spark, not the group,
    remembers where the stream goes on, so a commit that fails is no reason for the stream to."""

    TIMEOUT, FINAL_TIMEOUT, REST = 5.0, 30.0, 10.0
    """Seconds: for one commit, for the last one of a query, and before the next attempt after one has failed."""

    def __init__(self, cluster: Cluster, group_id: str | None) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._committed: Offsets | None = None
        self._rest_until = 0.0

    def reached(self, offsets: Offsets, *, final: bool = False) -> None:
        """All before ``offsets`` is done with. ``final``: nothing will follow, so try in earnest."""
        if self._group_id is None or not offsets or offsets == self._committed:
            return
        if time.monotonic() < self._rest_until and not final:
            return
        try:
            self._cluster.commit(offsets, timeout=self.FINAL_TIMEOUT if final else self.TIMEOUT)
        except Exception as error:
            self._rest_until = time.monotonic() + self.REST
            log.warning("progress was not committed to group %r, the stream goes on: %s", self._group_id, error)
        else:
            self._committed = dict(offsets)
