"""The interface of assignors that members run: Kafka's ConsumerPartitionAssignor, in Python.

Owns the interface of Ottla's and of users' assignors, and the order of members in Kafka's assignors. Must not know any assignor.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.types import ConsumerGroupMetadata, TopicPartition


class RebalanceProtocol(enum.IntEnum):
    """When members revoke their partitions in a rebalance (KIP-429). The numbers are Kafka's."""

    EAGER = 0
    """All of them, before they join."""
    COOPERATIVE = 1
    """Only those that move to another member, when the assignment arrives."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """One member's subscription and its partitions.

    ``owned`` are the partitions that it owns since ``generation``; ``user_data`` is from its ``subscription_user_data()``.
    """

    topics: tuple[str, ...]
    instance_id: str | None = None
    rack: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """One member's partitions, and ``user_data`` for its assignor's ``on_assignment``."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The existing topics to which members subscribed.

    ``partitions``: topic -> the number of its partitions. ``racks``: topic -> for each partition in order, the racks with a
    replica; a topic whose racks are not known is missing.
    """

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]] = field(default_factory=dict)

    def racks_of(self, tp: TopicPartition) -> frozenset[str]:
        """The racks with a replica of a partition."""
        racks = self.racks.get(tp.topic, ())
        return racks[tp.partition] if tp.partition < len(racks) else frozenset()


Shares = Mapping[str, MemberAssignment | Iterable[TopicPartition]]
"""An assignor's result: member id -> partitions, alone or with user data. A missing member gets no partitions."""


class ConsumerPartitionAssignor(ABC):
    """Assigns partitions to the members of a group. Subclass it to write your own assignor.

    Each member of the group sends the names of its assignors; the group uses one that all of them have. One member computes the
    assignment of all members: the leader of a classic group, or any member of a consumer group (``group_client_assignors``). Each
    consumer has its own instance, whose methods are called on the thread that calls ``poll()``, never concurrently.
    """

    name: str
    """The name on the wire, the same in all members."""

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """Data about this member for ``assign()``; ``topics`` are its subscribed topics. Empty bytes mean the same as ``None``.

        In a classic group each join calls it. In a consumer group only ``subscribe()`` calls it: a changed value causes a new
        assignment.
        """
        return None

    @abstractmethod
    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> Shares:
        """Compute the assignment. Called in one member only. A subscribed topic that is not in ``cluster`` does not exist.

        In a classic group a ``COOPERATIVE`` assignor must not assign a partition to one member while another owns it: it leaves
        the partition out, and is called again after the owner has revoked it. In a consumer group it may assign the partition: the
        coordinator waits until the owner has revoked it. If the assignor leaves it out anyway, it is called again at once, as if
        the owner had revoked it.

        If it raises, ``poll()`` of this member, or in a consumer group of every member, raises an ``AssignmentError``.
        """

    def on_assignment(  # noqa: B027 - optional
        self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata
    ) -> None:
        """Called with this member's assignment of a new generation or member epoch, before ``on_assign``."""

    def supported_protocols(self) -> Sequence[RebalanceProtocol]:
        """The rebalance protocols that the assignor supports."""
        return (RebalanceProtocol.EAGER,)

    def version(self) -> int:
        """The version of the user data.

        A classic group does not use it. A consumer group uses an assignor only if all members have the same version of it. It is
        called once, when the consumer is created.
        """
        return 0


def in_order(members: Mapping[str, MemberSubscription], member_ids: Iterable[str]) -> list[str]:
    """Sort member ids: static members first, by instance id (which survives restarts), then the others by member id."""

    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (True, member_id) if instance_id is None else (False, instance_id)

    return sorted(member_ids, key=rank)


def subscribed_topics(cluster: Cluster, members: Mapping[str, MemberSubscription]) -> list[str]:
    """The topics with partitions to which a member subscribed, sorted."""
    topics = {topic for member in members.values() for topic in member.topics}
    return sorted(topic for topic in topics if cluster.partitions.get(topic))


def racks_matter(members: Iterable[MemberSubscription], racks: Sequence[frozenset[str]]) -> bool:
    """Whether a member is in a rack that has replicas of only some of these partitions (KIP-881)."""
    all_racks = frozenset[str]().union(*racks)
    return any(member.rack in all_racks for member in members if member.rack) and any(some != all_racks for some in racks)
