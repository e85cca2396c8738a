"""A group of the consumer protocol (KIP-848), as an immutable value.

Owns the fields of a group and of its members, and the check of the sender of an OffsetCommit or OffsetFetch. Must not know how they
change (``machine``) nor which responses follow. Invariants: nothing here changes after it was created; a member's epoch is at most
the assignment epoch, which is at most the group epoch; a member cannot commit an offset of a partition that another member may own
by now.

Three epochs describe the progress of a group. The *group epoch* grows with every change that may call for another assignment. The
*assignment epoch* is the group epoch that the target assignment was computed for. The *member epoch* is the assignment epoch that a
member has reached: it owns no partitions outside that target.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ottla.assignors import Assignment
from ottla.coordinator.consumer.client_side import ClientAssignment
from ottla.coordinator.decision import TopicImage
from ottla.coordinator.effects import RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.group_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionValue,
    CurrentTopicPartitions,
)
from ottla.types import TopicPartition

JOIN_GROUP_EPOCH, LEAVE_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH = 0, -1, -2
"""Special member epochs in requests. A static member that leaves for a while, to be restarted, sends the last; it is also stored as
the epoch of the member until it returns."""

PartitionEpochs = Mapping[UUID, Mapping[int, int]]
"""Partitions of topics, each with the epoch in which the member got it (KIP-1251)."""

NO_PARTITIONS: Mapping[int, int] = {}
"""A shared empty mapping; do not write to it."""


class MemberState(enum.IntEnum):
    """The state of a member's reconciliation; the numbers are those of its record."""

    STABLE = 0
    """It owns all partitions that the target of its epoch gives to it, and no others."""
    UNREVOKED_PARTITIONS = 1
    """It must revoke partitions and has not yet acknowledged that."""
    UNRELEASED_PARTITIONS = 2
    """Its target has partitions that other members have not released yet."""
    UNKNOWN = 127
    """A newer broker wrote a number that this one does not know."""


class ConsumerGroupState(enum.Enum):
    """The state of a group; the values are the names that clients see. Derived, never stored."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is older than the group epoch."""
    RECONCILING = "Reconciling"
    """Not all members have reached the target assignment."""
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """One member: its subscription and settings (``metadata``), and its current assignment."""

    member_id: str
    metadata: ConsumerGroupMemberMetadataValue = field(default_factory=ConsumerGroupMemberMetadataValue)
    epoch: int = JOIN_GROUP_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    """The partitions that it may read."""
    revoking: PartitionEpochs = field(default_factory=dict)
    """The partitions that it must revoke. Until it has acknowledged that, no other member gets them."""

    @property
    def instance_id(self) -> str | None:
        """The id that a static member keeps across restarts."""
        return self.metadata.instance_id

    @property
    def client_id(self) -> str:
        """The ``client.id`` of its client."""
        return self.metadata.client_id

    @property
    def uses_classic_protocol(self) -> bool:
        """Whether it is a member of the classic protocol in a group that is being migrated."""
        return self.metadata.classic_member_metadata is not None

    def owned_partitions(self) -> Iterator[tuple[UUID, Mapping[int, int]]]:
        """Yield the partitions that no other member may get, by topic: the assigned ones and those not yet revoked."""
        yield from self.assigned.items()
        yield from self.revoking.items()


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """One group. Some mappings are indexes over others, so that no step is linear in the number of members."""

    group_id: str
    epoch: int = 1
    metadata_hash: int = 0
    """The hash of the subscribed topics' metadata when the group epoch began."""
    assignment_epoch: int = 1
    assignment_timestamp: int = 0
    """When an assignor computed the target assignment (wall-clock milliseconds); 0 if none did."""
    members: Mapping[str, ConsumerGroupMember] = field(default_factory=dict)
    target: Mapping[str, Assignment] = field(default_factory=dict)
    """Member id -> the partitions that the member shall get."""
    regexes: Mapping[str, ConsumerGroupRegularExpressionValue] = field(default_factory=dict)
    """Regular expression -> the topics that it matches, for those that have been resolved."""
    owners: PartitionEpochs = field(default_factory=dict)
    """Index: every partition that a member owns, with the epoch of that member."""
    static_members: Mapping[str, str] = field(default_factory=dict)
    """Index: instance id -> member id."""
    subscribers: Mapping[str, int] = field(default_factory=dict)
    """Index: topic name -> number of members that subscribe to it by name."""
    regex_subscribers: Mapping[str, int] = field(default_factory=dict)
    """Index: regular expression -> number of members that subscribe with it."""
    votes: Mapping[str, int] = field(default_factory=dict)
    """Index: server-side assignor -> number of members that prefer it."""
    image_version: int | None = None
    """The version of the topic image for which ``metadata_hash`` was last compared. Volatile."""
    regex_version: int | None = None
    """The version of the topic image against which the regular expressions were last resolved. Volatile."""
    resolving: bool = False
    """Whether regular expressions are being resolved. Volatile."""
    client: ClientAssignment = field(default_factory=ClientAssignment)
    """The state of assignors that members run themselves. Volatile."""

    @property
    def state(self) -> ConsumerGroupState:
        """The group's state. Linear in the number of members."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.is_settled(member) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def is_settled(self, member: ConsumerGroupMember) -> bool:
        """Whether a member has reached the target assignment. A static member that is away has not: it continues on its return."""
        return member.state is MemberState.STABLE and member.epoch == self.assignment_epoch

    def subscribed_topics(self) -> set[str]:
        """Return the names of all topics that any member subscribes to, whether they exist or not."""
        topics = set(self.subscribers)
        for regex in self.regex_subscribers:
            if regex in self.regexes:
                topics.update(self.regexes[regex].topics)
        return topics

    def topics_of(self, metadata: ConsumerGroupMemberMetadataValue) -> set[str]:
        """Return the names of the topics that a member subscribes to."""
        topics = set(metadata.subscribed_topic_names)
        resolved = self.regexes.get(metadata.subscribed_topic_regex or "")
        if resolved is not None:
            topics.update(resolved.topics)
        return topics

    def preferred_assignor(self) -> str | None:
        """Return the server-side assignor that most members prefer, ``None`` if none prefers any. The name breaks a tie."""
        return max(sorted(self.votes), key=lambda name: self.votes[name], default=None)


def partition_epochs_of(stored: tuple[CurrentTopicPartitions, ...], member_epoch: int) -> dict[UUID, dict[int, int]]:
    """Return the partitions of a record. A record from before KIP-1251 has no epochs; the member epoch is used then."""
    partitions: dict[UUID, dict[int, int]] = {}
    for topic in stored:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = (member_epoch,) * len(topic.partitions)
        partitions[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return partitions


def stored_partitions(partitions: PartitionEpochs) -> tuple[CurrentTopicPartitions, ...]:
    """Return partitions in the form of a record."""
    return tuple(
        CurrentTopicPartitions(topic_id=topic_id, partitions=tuple(epochs), assignment_epochs=tuple(epochs.values()))
        for topic_id, epochs in partitions.items()
    )


def commit_error(
    group: ConsumerGroup,
    context: RequestContext,
    member_id: str,
    epoch: int,
    partitions: Iterable[TopicPartition],
    image: TopicImage,
) -> ErrorCode | None:
    """Return the error of an OffsetCommit for these partitions, ``None`` if the sender may commit them all.

    Any client may commit offsets of a group without members.
    """
    if epoch < 0 and not group.members:
        return None
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.unknown_member_id
    if not member.uses_classic_protocol and VersionRule.KNOWS_EPOCHS not in context.version_rules:
        return ErrorCode.unsupported_version
    if may_commit(member, epoch, partitions, image):
        return None
    return ErrorCode.illegal_generation if member.uses_classic_protocol else ErrorCode.stale_member_epoch


def may_commit(member: ConsumerGroupMember, epoch: int, partitions: Iterable[TopicPartition], image: TopicImage) -> bool:
    """Whether a member may commit these partitions with this epoch (KIP-1251).

    With its current epoch it may commit any partition. With an older one it may commit the partitions that it has owned since then:

    1. The member sends a commit with its epoch.
    2. Meanwhile its heartbeat brings it to the next epoch, in which it keeps the partition.
    3. The commit arrives with the older epoch. No other member has owned the partition in between, so the offset is valid.
    """
    return epoch == member.epoch or (
        epoch < member.epoch and all(_assignment_epoch(member, partition, image) <= epoch for partition in partitions)
    )


def fetch_error(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode | None:
    """Return the error of an OffsetFetch by a member, ``None`` if it may fetch. A request without a member id always may."""
    if member_id is None and epoch < 0:
        return None
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.unknown_member_id
    if epoch == member.epoch:
        return None
    return ErrorCode.illegal_generation if member.uses_classic_protocol else ErrorCode.stale_member_epoch


_NOT_OWNED = 2**31


def _assignment_epoch(member: ConsumerGroupMember, partition: TopicPartition, image: TopicImage) -> int:
    """Return the epoch in which a member got a partition that it owns; greater than any epoch if it does not own it."""
    topic_id = image.topic_id(partition.topic)
    if topic_id is None:
        return _NOT_OWNED
    for owned in (member.assigned, member.revoking):
        epoch = owned.get(topic_id, NO_PARTITIONS).get(partition.partition)
        if epoch is not None:
            return epoch
    return _NOT_OWNED
