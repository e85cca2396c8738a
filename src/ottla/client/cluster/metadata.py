"""The cluster's metadata as an immutable snapshot, and the manager that refreshes it.

Owns ``Metadata`` (nodes, topics, leaders) and the Metadata requests. Must not know sockets, subscriptions or positions.
Invariant: the leader epoch of a partition never decreases, unless its topic was recreated (another topic id) or the leader itself
does not know the epoch (``SeenEpochs``). So metadata from a broker that is behind has no effect:

1. Broker 2 becomes the leader in epoch 5, and metadata from broker 1 say so.
2. The next Metadata request goes to broker 3, whose own metadata is older: broker 1 leads in epoch 4.
3. Epoch 4 is less than 5, so broker 2 remains the leader here.
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
from ottla.client.events import TopicErrorNotification
from ottla.config import ClientConfig
from ottla.errors import BrokerError, OttlaError, UnknownTopicOrPartitionError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import metadata_request, metadata_response
from ottla.types import Leader, Node, Now, PartitionInfo, TopicPartition

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """The metadata of one topic; ``error`` is the broker's error for the topic."""

    name: str
    topic_id: uuid.UUID | None
    partitions: tuple[PartitionInfo, ...] = ()
    error: BrokerError | None = None
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class Metadata:
    """An immutable snapshot. ``version`` counts the updates that led to it; version 0 is empty."""

    version: int = 0
    cluster_id: str | None = None
    nodes: Mapping[int, Node] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicMetadata] = field(default_factory=lambda: MappingProxyType({}))
    _names: Mapping[uuid.UUID, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    _partitions: Mapping[TopicPartition, PartitionInfo] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    _epochs: Mapping[TopicPartition, SeenEpochs] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic id; ``None`` if it is unknown."""
        return self._names.get(topic_id)

    def topic_id(self, name: str) -> uuid.UUID | None:
        """Return the id of a topic; ``None`` if the topic or its id is unknown."""
        topic = self.topics.get(name)
        return topic.topic_id if topic is not None else None

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Return all partitions of a topic, in order; none if it is unknown."""
        metadata = self.topics.get(topic)
        return metadata.partitions if metadata is not None else ()

    def replica_racks(self, topics: Iterable[str]) -> dict[str, tuple[frozenset[str], ...]]:
        """Return topic -> for each partition in order the racks of its replicas. Empty if no broker has a rack."""
        racks = {node.node_id: node.rack for node in self.nodes.values() if node.rack}
        if not racks:
            return {}
        return {
            topic: tuple(frozenset(racks[replica] for replica in one.replicas if replica in racks) for one in partitions)
            for topic in topics
            if (partitions := self.partitions_for(topic))
        }

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        """Return the metadata of one partition, ``None`` if it is unknown."""
        return self._partitions.get(tp)

    def absence(self, tp: TopicPartition) -> BrokerError | None:
        """Return the error for a partition that does not exist: its topic does not exist or has fewer partitions. Else ``None``."""
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
        """Return the leader, if there is one and its node is known, with the highest known epoch.

        If that is higher than the epoch of the metadata, the node may no longer be the leader. Its response says so: a broker
        rejects every epoch except its own.
        """
        info = self._partitions.get(tp)
        if info is None or info.leader is None or info.leader not in self.nodes:
            return None
        seen = self._epochs.get(tp)
        return Leader(self.nodes[info.leader], info.leader_epoch if seen is None else seen.current(info.leader_epoch))


class MetadataManager:
    """Keeps ``current`` up to date: requests metadata on demand, after ``metadata.max.age.ms``, and again, with back-off, after
    errors.

    At most one request is in flight. ``set_topics(None)`` follows all topics.
    """

    def __init__(
        self, config: ClientConfig, random: RandomPort, notify: Callable[[object], None], *, allow_auto_create: bool = False
    ) -> None:
        self.current = Metadata()
        self.failure: OttlaError | None = None
        """The error of the latest request; ``None`` after a success."""
        self._config = config
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self._notify = notify
        self._allow_auto_create = allow_auto_create
        self._may_create = True
        self._topics: frozenset[str] | None = frozenset()
        self._transient: dict[str, int | None] = {}
        self._wanted = True
        self._in_flight = False
        self._urgent = False
        """Whether topics were added while a request without them was in flight, so that another request must follow at once."""
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
        """Whether all topics are followed, so that a topic without metadata does not exist."""
        return self._topics is None

    def set_topics(self, topics: frozenset[str] | None, *, may_create: bool = True) -> None:
        """Follow these topics from now on; ``None``: all of them. New ones are requested at once. ``may_create``: whether brokers
        may create what does not exist, if the settings allow it."""
        self._may_create = may_create
        added = topics is None if self._topics is not None else False
        if topics is not None:
            added = not topics <= (self._topics or frozenset(self.current.topics))
        self._topics = topics
        if added:
            self._request_at_once()

    def add_transient(self, topics: Iterable[str]) -> None:
        """Request these topics too, and follow them for ``metadata.max.age.ms`` after the last call with them."""
        new = [topic for topic in topics if topic not in self.current.topics]
        self._transient.update(dict.fromkeys(topics))
        if new:
            self._request_at_once()

    def request_update(self) -> int:
        """Request metadata soon. It has arrived when ``current.version`` is greater than the returned number.

        A request in flight may have been sent before the event that made the caller ask. So its response does not count: the number
        is one higher then.
        """
        self._wanted = True
        return self.current.version + self._in_flight

    def on_fatal(self, observer: Callable[[OttlaError], None]) -> None:
        """Call ``observer`` with each error that a retry does not fix. Requests go on."""
        self._observers.append(observer)

    def observe_epoch(self, tp: TopicPartition, epoch: int) -> None:
        """Note a leader epoch from a committed offset, a seek or a leader: later requests do not have an older one.

        An epoch that the leader does not know is ignored.
        """
        before = self.current._epochs.get(tp, SeenEpochs())
        after = before.after_observation(epoch)
        if after != before:
            self._see(tp, after)
            self._wanted = True

    def _see(self, tp: TopicPartition, seen: SeenEpochs) -> None:
        self.current = dataclasses.replace(self.current, _epochs=MappingProxyType({**self.current._epochs, tp: seen}))

    def epoch_refused(self, tp: TopicPartition, epoch: int | None, now: Now) -> None:
        """Note that the leader has answered UNKNOWN_LEADER_EPOCH to a request with ``epoch``; drop the epoch after several
        times.
        """
        self._wanted = True
        leader = self.current.leader(tp)
        if epoch is None or leader is None or leader.epoch != epoch:
            return  # the response to a request from before the epoch changed
        if self._refused_epochs.refused(tp, epoch, self.current.version, now):
            self._see(tp, self.current._epochs.get(tp, SeenEpochs()).after_refusal(epoch))
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
        """Note that the leader has accepted a request with its epoch."""
        self._refused_epochs.accepted(tp)

    def update_leaders(self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]) -> bool:
        """Take over leaders (node id, epoch) from an error response (KIP-951). Return whether any of them is newer."""
        all_nodes = {**self.current.nodes, **{node.node_id: node for node in nodes}}
        partitions, epochs = dict(self.current._partitions), dict(self.current._epochs)
        changed = False
        for tp, (leader, epoch) in leaders.items():
            before = partitions.get(tp)
            if before is not None and leader in all_nodes and epoch > (-1 if before.leader_epoch is None else before.leader_epoch):
                partitions[tp] = before._replace(leader=leader, leader_epoch=epoch)
                epochs[tp] = epochs.get(tp, SeenEpochs()).after_metadata(before.leader_epoch, epoch)
                changed = True
        if changed:
            topics = {
                name: dataclasses.replace(topic, partitions=tuple(partitions[TopicPartition(*p[:2])] for p in topic.partitions))
                for name, topic in self.current.topics.items()
            }
            self.current = _snapshot(self.current, self.current.version + 1, all_nodes, topics, epochs)
        return changed

    def rebootstrap_required(self, now: Now) -> bool:
        """Return whether to start again with the bootstrap servers (KIP-1102): a broker demands it, or none has answered for
        ``metadata.recovery.rebootstrap.trigger.ms``. True only once for each of these events.
        """
        if self._config.metadata_recovery_strategy != "rebootstrap" or self._failing_since is None:
            return False
        is_demanded = isinstance(self.failure, BrokerError) and self.failure.code == ErrorCode.rebootstrap_required
        is_overdue = now.mono - self._failing_since >= self._config.metadata_recovery_rebootstrap_trigger_ms
        if is_demanded or is_overdue:
            self._failing_since = None
        return is_demanded or is_overdue

    def poll(self, now: Now) -> Poll:
        """Return a Metadata request if one is due."""
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
        failed = [topic for topic in self.current.topics.values() if topic.error is not None]
        for topic in failed:
            if topic.error is not None and not topic.error.retriable:
                self._notify(TopicErrorNotification(topic.name, topic.error))
        self._attempts = self._attempts + 1 if failed else 0
        self._not_before = now.mono + (0 if self._urgent else self._backoff.delay(max(self._attempts - 1, 0)))
        self._wanted = self._wanted or bool(failed)
        return None

    def on_failure(self, error: OttlaError, now: Now) -> None:
        """Retry after the back-off."""
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

    def _request_at_once(self) -> None:
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
            allow_auto_topic_creation=self._allow_auto_create and self._may_create and topics is not None,
            include_topic_authorized_operations=False,
        )


def merge(old: Metadata, message: metadata_response.MetadataResponse) -> Metadata:
    """Return the snapshot after a response: its nodes and topics, but no partition with an older leader epoch than before."""
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
    was_recreated = item.topic_id is not None and before is not None and before != item.topic_id
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
        partitions.append(_newer_partition(old, info, epochs, was_recreated))
    return TopicMetadata(name, item.topic_id, tuple(partitions), error, item.is_internal)


def _newer_partition(
    old: Metadata, info: PartitionInfo, epochs: dict[TopicPartition, SeenEpochs], was_recreated: bool
) -> PartitionInfo:
    tp = TopicPartition(info.topic, info.partition)
    if info.leader_epoch is None:
        return info
    if was_recreated:
        epochs[tp] = SeenEpochs(info.leader_epoch)
        return info
    seen, previous = old._epochs.get(tp, SeenEpochs()), old.partition(tp)
    before = None if previous is None else previous.leader_epoch
    if previous is not None and before is not None and info.leader_epoch < before != seen.unknown:
        epochs[tp] = seen
        return previous
    epochs[tp] = seen.after_metadata(before, info.leader_epoch)
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
"""The number of metadata updates between the first refusal of an epoch and the last, before it is dropped."""

PATIENCE = 2_000
"""The minimum time between these two refusals, in milliseconds: three refreshes alone take a third of a second."""


class SeenEpochs(NamedTuple):
    """The leader epochs of one partition that a client has seen (KIP-320).

    The epoch in requests to a leader only increases, unless the leader does not know it. There are two such cases:

    - The controller has just appointed the leader, and a client knows that before the leader does. The leader answers
      UNKNOWN_LEADER_EPOCH until its own metadata catches up, within milliseconds to a second.
    - The epoch does not come from this cluster: a committed offset was copied from another one, or it is newer than the backup that
      the cluster was restored from. The leader never learns such an epoch. Kafka's consumer waits for ever; Ottla drops the epoch
      when the leader has refused it through ``REFRESHES`` metadata refreshes and for ``PATIENCE``.
    """

    last: int | None = None
    """The highest epoch from the cluster's metadata, a committed offset or a seek."""
    unknown: int | None = None
    """An epoch that the leader does not know. It and higher ones are ignored until the cluster's metadata reaches it."""

    def current(self, in_metadata: int | None) -> int | None:
        """Return the epoch for requests to the leader; ``None``: no epoch, so that the leader does not check it."""
        if in_metadata is None:
            return None
        epoch = in_metadata if self.last is None else max(in_metadata, self.last)
        return None if epoch == self.unknown else epoch

    def after_observation(self, epoch: int) -> SeenEpochs:
        """Return the epochs after a committed offset, a seek or a leader has named one."""
        if (self.last is not None and epoch <= self.last) or (self.unknown is not None and epoch >= self.unknown):
            return self
        return self._replace(last=epoch)

    def after_metadata(self, before: int | None, epoch: int) -> SeenEpochs:
        """Return the epochs after metadata with ``epoch``; the metadata before them had ``before``."""
        if self.unknown is not None and epoch >= self.unknown and before != epoch:
            return SeenEpochs(epoch)
        return self._replace(last=epoch if self.last is None or self.last == self.unknown else max(self.last, epoch))

    def after_refusal(self, epoch: int) -> SeenEpochs:
        """Return the epochs after one was dropped, since the leader does not know it."""
        return SeenEpochs(unknown=epoch)


class _Refusals(NamedTuple):
    epoch: int
    version: int
    since: int


class RefusedEpochs:
    """Counts consecutive refusals by partition."""

    def __init__(self) -> None:
        self._refusals: dict[TopicPartition, _Refusals] = {}

    def refused(self, tp: TopicPartition, epoch: int, version: int, now: Now) -> bool:
        """Note that the leader has refused ``epoch`` when metadata had ``version``. Return whether to drop the epoch."""
        first = self._refusals.get(tp)
        if first is None or first.epoch != epoch:
            self._refusals[tp] = _Refusals(epoch, version, now.mono)
            return False
        if version - first.version < REFRESHES or now.mono - first.since < PATIENCE:
            return False
        del self._refusals[tp]
        return True

    def accepted(self, tp: TopicPartition) -> None:
        """Note that the leader has accepted a request with the epoch, and reset the count."""
        self._refusals.pop(tp, None)

    def keep(self, partitions: Container[TopicPartition]) -> None:
        """Reset the counts of all other partitions, which the metadata no longer has."""
        for tp in [tp for tp in self._refusals if tp not in partitions]:
            del self._refusals[tp]
