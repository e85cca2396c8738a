"""The topics of a producer: which ones the metadata has to describe, and how many partitions the accumulator knows of each.

Owns the topics in use and the calls that wait for one. Must not know records. Invariant: a topic that is in use is refreshed with
the metadata; one that was not used for ``metadata.max.idle.ms``, and whose batches all have an outcome, is no longer, and its next
record waits for new metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from ottla.client.cluster.metadata import Metadata, MetadataManager
from ottla.client.effects import Poll
from ottla.client.produce.outcome import Outcome
from ottla.config.producer import ProducerConfig
from ottla.errors import AuthenticationError, ConnectionFailedError, OttlaError, OttlaTimeoutError, UnknownTopicOrPartitionError
from ottla.records.accumulator import RecordAccumulator
from ottla.types import Now

_CREATE = "create the topic, or let the brokers create topics: auto.create.topics.enable=true"
_SLOW = "see the logs of the brokers, or increase max_block"


@dataclass(frozen=True, slots=True, eq=False)
class AwaitTopic:
    """A command: done when the metadata has this topic, with more than ``partition`` partitions; it fails at ``deadline``."""

    topic: str
    partition: int
    deadline: int
    outcome: Outcome = field(default_factory=Outcome)


class ProducerTopics:
    """A ``RequestManager`` without requests, polled before the metadata's. ``unreachable`` returns why no broker is connected."""

    def __init__(
        self,
        config: ProducerConfig,
        metadata: MetadataManager,
        accumulator: RecordAccumulator,
        unreachable: Callable[[], OttlaError | None],
    ) -> None:
        self._unreachable = unreachable
        self._config = config
        self._metadata = metadata
        self._accumulator = accumulator
        self._used_at: dict[str, int] = {}
        """Topic -> when it was last asked for (monotonic ms)."""
        self._waiting: list[AwaitTopic] = []
        self._seen: Metadata | None = None

    def wait(self, command: AwaitTopic, now: Now) -> None:
        """Handle the command."""
        self._waiting.append(command)
        is_new = command.topic not in self._used_at
        self._used_at[command.topic] = now.mono
        if is_new:
            self._follow()

    def poll(self, now: Now) -> Poll:
        """Pass on what the metadata says, and end the calls that have waited long enough."""
        if self._seen is not self._metadata.current:
            self._seen = self._metadata.current
            awaited = {batch.queue.topic.name for batch in list(self._accumulator.incomplete)}
            self._use(awaited, now)
            self._forget_idle(awaited, now)
            for topic in self._used_at:
                self._pass_on(topic)
        self._waiting = [command for command in self._waiting if not self._ended(command, now)]
        return Poll(wake_at=min((command.deadline for command in self._waiting), default=None))

    def _use(self, topics: Set[str], now: Now) -> None:
        """Follow these topics. A record that was appended while its topic was being forgotten has brought one of them back."""
        if not topics <= self._used_at.keys():
            self._used_at = {**dict.fromkeys(topics, now.mono), **self._used_at}
            self._follow()

    def _forget_idle(self, awaited: Set[str], now: Now) -> None:
        """Forget topics, but not those of batches that wait for a leader, for example: no metadata would name one again."""
        awaited = awaited | {command.topic for command in self._waiting}
        for topic, used_at in list(self._used_at.items()):
            queues = self._accumulator.topics.get(topic)
            last = used_at if queues is None else max(used_at, queues.used_at)
            if topic not in awaited and last + self._config.metadata_max_idle_ms < now.mono:
                del self._used_at[topic]
                self._accumulator.set_partitions(topic, 0)
                self._follow()

    def _follow(self) -> None:
        """Have the metadata describe the topics in use."""
        self._metadata.set_topics(frozenset(self._used_at))

    def _pass_on(self, topic: str) -> None:
        if partitions := self._metadata.current.partitions_for(topic):
            led = [info.partition for info in partitions if info.leader is not None]
            self._accumulator.set_partitions(topic, len(partitions), led if len(led) < len(partitions) else None)

    def _ended(self, command: AwaitTopic, now: Now) -> bool:
        """Whether a call was ended: the topic is known, cannot be known, or the time is over."""
        metadata = self._metadata.current
        count = len(metadata.partitions_for(command.topic))
        if count > command.partition:
            self._pass_on(command.topic)  # metadata that was there before: the topic was not used for a while
            command.outcome.settle()
            return True
        topic = metadata.topics.get(command.topic)
        error: OttlaError | None = None if topic is None else topic.error
        if (final := error if error is not None and not error.retriable else self._final()) is not None:
            command.outcome.settle(error=final)
        elif command.deadline <= now.mono:
            command.outcome.settle(error=self._late(command, count, error))
        elif count:
            self._metadata.request_update()  # the partition may be about to be added
        return command.outcome.done

    def _final(self) -> OttlaError | None:
        """Why waiting does not help: all brokers refuse the login or the certificate, or are too old."""
        unreachable, failure = self._unreachable(), self._metadata.failure
        if isinstance(unreachable, AuthenticationError):
            return unreachable
        return failure if failure is not None and not failure.retriable else None

    def _late(self, command: AwaitTopic, count: int, error: OttlaError | None) -> OttlaError:
        within = f"within {self._config.max_block_ms / 1000:g} s"
        if count:
            text = (
                f"topic {command.topic!r} has partitions 0 to {count - 1}, and no partition {command.partition} appeared {within}"
            )
            return OttlaTimeoutError(text, hint="leave out the partition (of Arrow data: the column), or add some to the topic")
        cause = error or self._unreachable() or self._metadata.failure
        if isinstance(cause, ConnectionFailedError):
            return ConnectionFailedError(f"no broker could be reached {within}", cause.attempts, hint=cause.hint)
        text = f"topic {command.topic!r} was not found {within}"
        if cause is None:
            return OttlaTimeoutError(text, hint=_SLOW)
        hint = _CREATE if isinstance(cause, UnknownTopicOrPartitionError) else cause.hint or _SLOW
        return OttlaTimeoutError(f"{text}: {cause.args[0]}", hint=hint, cause=cause)
