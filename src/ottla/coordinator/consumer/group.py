"""A group of the consumer protocol (KIP-848) as a value, and the questions that one asks of it.

Owns the shape of a group and of its members. Must not know how they change (``machine``) nor what is answered to whom. Invariants:
nothing here changes after it was made; a member's epoch is at most the assignment epoch, which is at most the group's epoch.

Three epochs tell where a group stands. The *group epoch* grows with everything that may call for another assignment. The
*assignment epoch* is the group epoch that the target assignment was made for. The *member epoch* is the assignment epoch that a
member has reached: it owns nothing outside that target any more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ottla.assignors import Assignment
from ottla.coordinator.consumer.client_side import ClientAssignment
from ottla.protocol.group_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionValue,
    CurrentTopicPartitions,
)

JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
"""Special member epochs in requests, which no member reaches. The last is how a static member says that it will be back; it is
stored, too."""

PartitionEpochs = Mapping[UUID, Mapping[int, int]]
"""Partitions of topics, each with the epoch in which the member got it (KIP-1251)."""

NO_PARTITIONS: Mapping[int, int] = {}
"""Never to be written to."""


class MemberState(enum.IntEnum):
    """What a member waits for; the numbers are those of its record."""

    STABLE = 0
    """It has what the target of its epoch assigns to it."""
    UNREVOKED_PARTITIONS = 1
    """It must give up partitions, and has not yet acknowledged that."""
    UNRELEASED_PARTITIONS = 2
    """It gets partitions that others still own."""
    UNKNOWN = 127
    """A newer broker has written another number."""


class ConsumerGroupState(enum.Enum):
    """The state of a group; the values are the names that clients see. Derived, never stored."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is older than the group epoch."""
    RECONCILING = "Reconciling"
    """Members are on their way to the target assignment."""
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """One member: what it asked for (``metadata``), and what it has."""

    member_id: str
    metadata: ConsumerGroupMemberMetadataValue = field(default_factory=ConsumerGroupMemberMetadataValue)
    epoch: int = JOIN
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    """What it may read."""
    revoking: PartitionEpochs = field(default_factory=dict)
    """The partitions that it has to give up; no other member gets them before."""

    @property
    def instance_id(self) -> str | None:
        """The name that a static member keeps across restarts."""
        return self.metadata.instance_id

    @property
    def client_id(self) -> str:
        """What its client calls itself."""
        return self.metadata.client_id

    @property
    def uses_classic_protocol(self) -> bool:
        """Whether it is a member of the classic protocol in a group that is being migrated."""
        return self.metadata.classic_member_metadata is not None

    def held(self) -> Iterator[tuple[UUID, Mapping[int, int]]]:
        """All partitions that no other member may have, by topic: those that it may read and those that it has not given up."""
        yield from self.assigned.items()
        yield from self.revoking.items()


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """One group. Mappings that could be computed from others are kept so that no step is linear in the members."""

    group_id: str
    epoch: int = 1
    metadata_hash: int = 0
    """Of the topics that its members are subscribed to, when they were looked at last."""
    assignment_epoch: int = 1
    assignment_timestamp: int = 0
    """When the target assignment was made (wall-clock milliseconds); 0: by no assignor."""
    members: Mapping[str, ConsumerGroupMember] = field(default_factory=dict)
    target: Mapping[str, Assignment] = field(default_factory=dict)
    """By member id what each shall have."""
    regexes: Mapping[str, ConsumerGroupRegularExpressionValue] = field(default_factory=dict)
    """What the regular expressions of members match, once that is known."""
    owners: PartitionEpochs = field(default_factory=dict)
    """Every partition that a member owns, with the epoch of that member."""
    static_members: Mapping[str, str] = field(default_factory=dict)
    """Instance id -> member id."""
    subscribers: Mapping[str, int] = field(default_factory=dict)
    """How many members named a topic."""
    regex_subscribers: Mapping[str, int] = field(default_factory=dict)
    """How many members sent a regular expression."""
    votes: Mapping[str, int] = field(default_factory=dict)
    """How many members asked for an assignor."""
    image_version: int | None = None
    """The version of the topics for which ``metadata_hash`` holds. Volatile."""
    regex_version: int | None = None
    """The version of the topics that the regular expressions were last matched with. Volatile."""
    resolving: bool = False
    """Whether regular expressions are being matched now. Volatile."""
    client: ClientAssignment = field(default_factory=ClientAssignment)
    """Assignors that members run themselves. Volatile."""

    @property
    def state(self) -> ConsumerGroupState:
        """Where the group stands. Looks at all members."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.is_settled(member) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def is_settled(self, member: ConsumerGroupMember) -> bool:
        """Whether a member has reached the target assignment. One that is away for a while takes it up when it is back."""
        return member.state is MemberState.STABLE and member.epoch == self.assignment_epoch

    def subscribed_topics(self) -> set[str]:
        """The names of all topics that a member subscribes to, even if they do not exist."""
        topics = set(self.subscribers)
        for regex in self.regex_subscribers:
            if regex in self.regexes:
                topics.update(self.regexes[regex].topics)
        return topics

    def topics_of(self, metadata: ConsumerGroupMemberMetadataValue) -> set[str]:
        """The names of the topics that a member wants."""
        topics = set(metadata.subscribed_topic_names)
        resolved = self.regexes.get(metadata.subscribed_topic_regex or "")
        if resolved is not None:
            topics.update(resolved.topics)
        return topics

    def preferred_assignor(self) -> str | None:
        """The assignor that most members asked for, ``None`` if no member asked for any. The name breaks a tie."""
        return max(sorted(self.votes), key=lambda name: self.votes[name], default=None)


def partition_epochs_of(stored: tuple[CurrentTopicPartitions, ...], member_epoch: int) -> dict[UUID, dict[int, int]]:
    """Partitions as their record has them; one without epochs is of before KIP-1251, and then the member's own is taken."""
    holding: dict[UUID, dict[int, int]] = {}
    for topic in stored:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = (member_epoch,) * len(topic.partitions)
        holding[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return holding


def stored_partitions(holding: PartitionEpochs) -> tuple[CurrentTopicPartitions, ...]:
    """Partitions as a record has them."""
    return tuple(
        CurrentTopicPartitions(topic_id=topic_id, partitions=tuple(epochs), assignment_epochs=tuple(epochs.values()))
        for topic_id, epochs in holding.items()
    )
