"""What the cluster looks like, as a snapshot that never changes, and the manager that keeps it fresh.

Owns ``Metadata`` (nodes, topics, leaders) and the Metadata requests. Must not know sockets, subscriptions or positions.
Invariant: the leader epoch of a partition only moves up, unless its topic was recreated (another topic id) or the leader itself
does not know the epoch (``SeenEpochs``); an outdated answer is ignored.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.effects import AnyNode, Poll, Send
from ottla.client.notifications import TopicErrorNotification
from ottla.config import ClientConfig
from ottla.errors import BrokerError, OttlaError, UnknownTopicOrPartitionError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import metadata_request, metadata_response
from ottla.types import Leader, Node, Now, PartitionInfo, TopicPartition

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """What is known of one topic. ``error`` is what the broker said instead of describing it."""

    name: str
    topic_id: uuid.UUID | None
    partitions: tuple[PartitionInfo, ...] = ()
    error: BrokerError | None = None
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class Metadata:
    """An immutable snapshot. ``version`` counts the answers that went into it; 0 is the one that knows nothing."""

    version: int = 0
    cluster_id: str | None = None
    nodes: Mapping[int, Node] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicMetadata] = field(default_factory=lambda: MappingProxyType({}))
    _names: Mapping[uuid.UUID, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    _partitions: Mapping[TopicPartition, PartitionInfo] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    _epochs: Mapping[TopicPartition, SeenEpochs] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name of a topic id."""
        return self._names.get(topic_id)

    def topic_id(self, name: str) -> uuid.UUID | None:
        """The id of a topic; ``None`` if the topic or its id is not known."""
        topic = self.topics.get(name)
        return topic.topic_id if topic is not None else None

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """All partitions of a topic, in order; empty if nothing is known of it."""
        known = self.topics.get(topic)
        return known.partitions if known is not None else ()

    def replica_racks(self, topics: Iterable[str]) -> dict[str, tuple[frozenset[str], ...]]:
        """By topic, for each partition in order, the racks with a replica of it. Empty where no broker has a rack."""
        racks = {node.node_id: node.rack for node in self.nodes.values() if node.rack}
        if not racks:
            return {}
        return {
            topic: tuple(frozenset(racks[replica] for replica in one.replicas if replica in racks) for one in partitions)
            for topic in topics
            if (partitions := self.partitions_for(topic))
        }

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        """What is known of one partition."""
        return self._partitions.get(tp)

    def absence(self, tp: TopicPartition) -> BrokerError | None:
        """The error that a partition does not exist, if the cluster says so: its topic does not exist, or has fewer partitions."""
        topic = self.topics.get(tp.topic)
        if topic is None or tp in self._partitions:
            return None
        if topic.partitions:
            count = len(topic.partitions)
            return UnknownTopicOrPartitionError(f"{tp}: the topic has {count} partition{'s' if count > 1 else ''}")
        if topic.error is not None and topic.error.code == ErrorCode.unknown_topic_or_partition:
            return UnknownTopicOrPartitionError(f"{tp}: the topic does not exist")
        return None

    def leader(self, tp: TopicPartition) -> Leader | None:
        """The leader, if there is one and its node is known, with the highest known epoch.

        If that is higher than the epoch of the metadata, the node may no longer be the leader. It reports that in its answer: a
        broker refuses every epoch except its own.
        """
        known = self._partitions.get(tp)
        if known is None or known.leader is None or known.leader not in self.nodes:
            return None
        seen = self._epochs.get(tp)
        return Leader(self.nodes[known.leader], known.leader_epoch if seen is None else seen.current(known.leader_epoch))


class MetadataManager:
    """Keeps ``current`` fresh: asks when told to, when it has grown old, and again with back-off while answers are bad.

    At most one request is in flight. ``set_topics(None)`` follows all topics.
    """

    def __init__(
        self, config: ClientConfig, random: RandomPort, notify: Callable[[object], None], *, allow_auto_create: bool = False
    ) -> None:
        self.current = Metadata()
        self.failure: OttlaError | None = None
        """Why the latest request failed; ``None`` after a good answer."""
        self._config = config
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self._notify = notify
        self._allow_auto_create = allow_auto_create
        self._topics: frozenset[str] | None = frozenset()
        self._transient: dict[str, int | None] = {}
        self._wanted = True
        self._in_flight = False
        self._urgent = False
        """Whether something new was asked for while a request was in flight: its answer will not do."""
        self._attempts = 0
        self._observers: list[Callable[[OttlaError], None]] = []
        self._not_before = 0
        self._refresh_at: int | None = None
        self._failing_since: int | None = None
        self._refused_epochs = RefusedEpochs()

    def __repr__(self) -> str:
        state = "in flight" if self._in_flight else "wanted" if self._wanted else "fresh"
        return f"<MetadataManager version {self.current.version}, {state}>"

    @property
    def follows_all(self) -> bool:
        """Whether all topics are followed: one that an answer does not name does not exist."""
        return self._topics is None

    def set_topics(self, topics: frozenset[str] | None) -> None:
        """Follow these topics from now on; ``None``: all of them. New ones are asked for at once."""
        added = topics is None if self._topics is not None else False
        if topics is not None:
            added = not topics <= (self._topics or frozenset(self.current.topics))
        self._topics = topics
        if added:
            self._ask_at_once()

    def add_transient(self, topics: Iterable[str]) -> None:
        """Ask for these topics too, and keep them for one ``metadata.max.age.ms`` after they were last asked for here."""
        new = [topic for topic in topics if topic not in self.current.topics]
        self._transient.update(dict.fromkeys(topics))
        if new:
            self._ask_at_once()

    def request_update(self) -> int:
        """Ask again soon. What was asked for has come when ``current.version`` is above the number returned."""
        self._wanted = True
        return self.current.version + self._in_flight

    def on_fatal(self, observer: Callable[[OttlaError], None]) -> None:
        """Call ``observer`` when no broker describes the cluster, for a permanent reason. Requests go on."""
        self._observers.append(observer)

    def observe_epoch(self, tp: TopicPartition, epoch: int) -> None:
        """A committed offset, a seek or a leader named a leader epoch: later requests carry no older one.

        An epoch that the leader does not know is ignored.
        """
        before = self.current._epochs.get(tp, SeenEpochs())
        after = before.named(epoch)
        if after != before:
            self._see(tp, after)
            self._wanted = True

    def _see(self, tp: TopicPartition, seen: SeenEpochs) -> None:
        self.current = dataclasses.replace(self.current, _epochs=MappingProxyType({**self.current._epochs, tp: seen}))

    def epoch_refused(self, tp: TopicPartition, epoch: int | None, now: Now) -> None:
        """The leader answered UNKNOWN_LEADER_EPOCH to a request with ``epoch``. If it keeps doing so, the epoch is dropped."""
        self._wanted = True
        leader = self.current.leader(tp)
        if epoch is None or leader is None or leader.epoch != epoch:
            return  # an answer about an epoch that requests no longer carry
        if self._refused_epochs.refused(tp, epoch, self.current.version, now):
            self._see(tp, self.current._epochs.get(tp, SeenEpochs()).refused(epoch))
            _log.warning(
                "%s: node %d leads it and does not know leader epoch %d, nor does it after %d metadata refreshes. The epoch is"
                " dropped and reading goes on: a committed offset or a seek from another cluster may have named it, or the cluster"
                " was restored",
                tp,
                leader.node.node_id,
                epoch,
                REFRESHES,
            )

    def epoch_accepted(self, tp: TopicPartition) -> None:
        """The leader accepted a request that carried its epoch."""
        self._refused_epochs.accepted(tp)

    def update_leaders(self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]) -> bool:
        """Leaders (node id, epoch) that came with an error (KIP-951). Whether any of them was news."""
        known = {**self.current.nodes, **{node.node_id: node for node in nodes}}
        partitions, epochs = dict(self.current._partitions), dict(self.current._epochs)
        changed = False
        for tp, (leader, epoch) in leaders.items():
            before = partitions.get(tp)
            if before is not None and leader in known and epoch > (-1 if before.leader_epoch is None else before.leader_epoch):
                partitions[tp] = before._replace(leader=leader, leader_epoch=epoch)
                epochs[tp] = epochs.get(tp, SeenEpochs()).told(before.leader_epoch, epoch)
                changed = True
        if changed:
            topics = {
                name: dataclasses.replace(topic, partitions=tuple(partitions[TopicPartition(*p[:2])] for p in topic.partitions))
                for name, topic in self.current.topics.items()
            }
            self.current = _snapshot(self.current, self.current.version + 1, known, topics, epochs)
        return changed

    def rebootstrap_required(self, now: Now) -> bool:
        """Whether to begin again with the bootstrap servers (KIP-1102): a broker said so, or none has answered for too long.

        Said once for each time that happens.
        """
        if self._config.metadata_recovery_strategy != "rebootstrap" or self._failing_since is None:
            return False
        told = isinstance(self.failure, BrokerError) and self.failure.code == ErrorCode.rebootstrap_required
        waited = now.mono - self._failing_since >= self._config.metadata_recovery_rebootstrap_trigger_ms
        if told or waited:
            self._failing_since = None
        return told or waited

    def poll(self, now: Now) -> Poll:
        """One Metadata request when it is due."""
        self._expire_transient(now)
        if self._in_flight:
            return Poll()
        due_at = self._not_before if self._wanted or self._refresh_at is None else max(self._refresh_at, self._not_before)
        if now.mono < due_at:
            return Poll(wake_at=due_at)
        timeout = self._config.request_timeout_ms
        send = Send(rpcs.METADATA, self._request(), AnyNode(), timeout, self.on_response, self.on_failure)
        self._in_flight, self._wanted, self._urgent = True, False, False
        return Poll((send,))

    def on_response(self, response: metadata_response.MetadataResponse, now: Now) -> None:
        """Make the next snapshot of a response."""
        self._in_flight = False
        if response.error_code:
            return self._failed(broker_error(int(response.error_code), "the broker refused to describe the cluster"), now)
        self.failure = self._failing_since = None
        self.current = merge(self.current, response)
        self._refused_epochs.keep(self.current._partitions)
        self._refresh_at = now.mono + self._config.metadata_max_age_ms
        refused = [topic for topic in self.current.topics.values() if topic.error is not None]
        for topic in refused:
            if topic.error is not None and not topic.error.retriable:
                self._notify(TopicErrorNotification(topic.name, topic.error))
        self._attempts = self._attempts + 1 if refused else 0
        self._not_before = now.mono + (0 if self._urgent else self._backoff.delay(max(self._attempts - 1, 0)))
        self._wanted = self._wanted or bool(refused)
        return None

    def on_failure(self, error: OttlaError, now: Now) -> None:
        """Try again after a while."""
        self._in_flight = False
        self._failed(error, now)

    def _failed(self, error: OttlaError, now: Now) -> None:
        self.failure = error
        if self._failing_since is None:
            self._failing_since = now.mono
        self._not_before = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1
        self._wanted = True
        if not error.retriable:
            for observer in self._observers:
                observer(error)

    def _ask_at_once(self) -> None:
        self._wanted = self._urgent = True
        if self.failure is None:
            self._not_before = 0

    def _expire_transient(self, now: Now) -> None:
        for topic, expires in list(self._transient.items()):
            if expires is None:
                self._transient[topic] = now.mono + self._config.metadata_max_age_ms
            elif expires <= now.mono:
                del self._transient[topic]

    def _request(self) -> metadata_request.MetadataRequest:
        topics = None
        if self._topics is not None:
            names = sorted(self._topics | self._transient.keys())
            topics = tuple(metadata_request.MetadataRequestTopic(topic_id=None, name=name) for name in names)
        return metadata_request.MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=self._allow_auto_create and topics is not None,
            include_topic_authorized_operations=False,
        )


def merge(old: Metadata, message: metadata_response.MetadataResponse) -> Metadata:
    """The snapshot after an answer: its topics and nodes, but no partition falls behind what was known of it."""
    nodes = {item.node_id: Node(item.node_id, item.host, item.port, item.rack) for item in message.brokers}
    epochs: dict[TopicPartition, SeenEpochs] = {}
    topics: dict[str, TopicMetadata] = {}
    for item in message.topics:
        name = item.name
        if name is None and item.topic_id is not None:
            name = old.topic_name(item.topic_id)
        if name is not None:
            topics[name] = _topic(old, name, item, epochs)
    return _snapshot(dataclasses.replace(old, cluster_id=message.cluster_id), old.version + 1, nodes, topics, epochs)


def _topic(
    old: Metadata, name: str, item: metadata_response.MetadataResponseTopic, epochs: dict[TopicPartition, SeenEpochs]
) -> TopicMetadata:
    error = broker_error(int(item.error_code), f"topic {name!r}") if item.error_code else None
    before = old.topic_id(name)
    made_anew = item.topic_id is not None and before is not None and before != item.topic_id
    partitions: list[PartitionInfo] = []
    for part in sorted(item.partitions, key=lambda part: int(part.partition_index)):
        info = PartitionInfo(
            name,
            part.partition_index,
            part.leader_id if part.leader_id >= 0 else None,
            part.leader_epoch if part.leader_epoch >= 0 else None,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
        )
        partitions.append(_not_behind(old, info, epochs, made_anew))
    return TopicMetadata(name, item.topic_id, tuple(partitions), error, item.is_internal)


def _not_behind(old: Metadata, info: PartitionInfo, epochs: dict[TopicPartition, SeenEpochs], made_anew: bool) -> PartitionInfo:
    tp = TopicPartition(info.topic, info.partition)
    if info.leader_epoch is None:
        return info
    if made_anew:
        epochs[tp] = SeenEpochs(info.leader_epoch)
        return info
    seen, known = old._epochs.get(tp, SeenEpochs()), old.partition(tp)
    before = None if known is None else known.leader_epoch
    if known is not None and before is not None and info.leader_epoch < before != seen.unknown:
        epochs[tp] = seen
        return known
    epochs[tp] = seen.told(before, info.leader_epoch)
    return info


def _snapshot(
    base: Metadata,
    version: int,
    nodes: Mapping[int, Node],
    topics: Mapping[str, TopicMetadata],
    epochs: Mapping[TopicPartition, SeenEpochs],
) -> Metadata:
    return dataclasses.replace(
        base,
        version=version,
        nodes=MappingProxyType(dict(nodes)),
        topics=MappingProxyType(dict(topics)),
        _names=MappingProxyType({topic.topic_id: topic.name for topic in topics.values() if topic.topic_id is not None}),
        _partitions=MappingProxyType(
            {TopicPartition(p.topic, p.partition): p for topic in topics.values() for p in topic.partitions}
        ),
        _epochs=MappingProxyType(dict(epochs)),
    )


REFRESHES = 3
"""The number of metadata answers that must arrive between the first refusal and the last."""

PATIENCE = 2_000
"""The minimum time between the first refusal and the last, in milliseconds: three refreshes alone take a third of a second."""


class SeenEpochs(NamedTuple):
    """The leader epochs of one partition that a client knows (KIP-320).

    The epoch that requests to a leader carry only increases while leaders know it. A leader that the controller has just appointed
    may not know its epoch yet: it refuses until its own metadata catches up, within milliseconds to a second. An epoch that it
    never learns does not come from this cluster: a committed offset may have been copied from another one, or be newer than the
    backup that the cluster was restored from. Kafka's consumer waits for such an epoch for ever; here it is dropped once the leader
    has refused it through ``REFRESHES`` metadata refreshes and for ``PATIENCE``.
    """

    last: int | None = None
    """The highest epoch that the cluster, a committed offset or a seek has named."""
    unknown: int | None = None
    """An epoch that the leader does not know. It, and higher ones, count again once the cluster itself has reached it."""

    def current(self, told: int | None) -> int | None:
        """The epoch for requests to the leader, where the metadata has ``told``; ``None``: none, and the leader does not check."""
        if told is None:
            return None
        epoch = told if self.last is None else max(told, self.last)
        return None if epoch == self.unknown else epoch

    def named(self, epoch: int) -> SeenEpochs:
        """A committed offset or a seek has named an epoch."""
        if (self.last is not None and epoch <= self.last) or (self.unknown is not None and epoch >= self.unknown):
            return self
        return self._replace(last=epoch)

    def told(self, before: int | None, epoch: int) -> SeenEpochs:
        """The cluster's metadata has ``epoch``, where it had ``before``."""
        if self.unknown is not None and epoch >= self.unknown and before != epoch:
            return SeenEpochs(epoch)
        return self._replace(last=epoch if self.last is None or self.last == self.unknown else max(self.last, epoch))

    def refused(self, epoch: int) -> SeenEpochs:
        """The leader does not know an epoch."""
        return SeenEpochs(unknown=epoch)


class _Refusals(NamedTuple):
    epoch: int
    version: int
    since: int


class RefusedEpochs:
    """Counts refusals in a row, by partition."""

    def __init__(self) -> None:
        self._refusals: dict[TopicPartition, _Refusals] = {}

    def refused(self, tp: TopicPartition, epoch: int, version: int, now: Now) -> bool:
        """The leader refused ``epoch`` while metadata was at ``version``. Returns whether to drop the epoch."""
        first = self._refusals.get(tp)
        if first is None or first.epoch != epoch:
            self._refusals[tp] = _Refusals(epoch, version, now.mono)
            return False
        if version - first.version < REFRESHES or now.mono - first.since < PATIENCE:
            return False
        del self._refusals[tp]
        return True

    def accepted(self, tp: TopicPartition) -> None:
        """The leader has accepted a request with the epoch."""
        self._refusals.pop(tp, None)

    def keep(self, partitions: Container[TopicPartition]) -> None:
        """No other partitions are described any more: the count of those begins again if they come back."""
        for tp in [tp for tp in self._refusals if tp not in partitions]:
            del self._refusals[tp]
