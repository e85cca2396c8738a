"""The interface of assignors that members run: Kafka's ConsumerPartitionAssignor, in Python.

Owns the interface that Ottla's own assignors follow and that users follow with theirs, and the order in which Kafka's assignors
look at members; must not know any one of them.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.types import ConsumerGroupMetadata, TopicPartition


class RebalanceProtocol(enum.IntEnum):
    """What members do with their partitions in a rebalance (KIP-429); the numbers are Kafka's."""

    EAGER = 0
    """Give all of them up before they join."""
    COOPERATIVE = 1
    """Keep them, and give up only those that go to another member."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What one member of the group wants and has.

    ``owned``: what it still holds, as of ``generation``; ``user_data``: what its own assignor sent along.
    """

    topics: tuple[str, ...]
    instance_id: str | None = None
    rack: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What one member is to read; ``user_data`` reaches its assignor's ``on_assignment``."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The topics that exist, as far as members subscribed to them.

    ``partitions``: how many each has. ``racks``: by topic, for each partition in order, the racks with a replica of it; a topic
    whose racks are not known is left out.
    """

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]] = field(default_factory=dict)

    def racks_of(self, tp: TopicPartition) -> frozenset[str]:
        """The racks with a replica of a partition."""
        racks = self.racks.get(tp.topic, ())
        return racks[tp.partition] if tp.partition < len(racks) else frozenset()


Shares = Mapping[str, MemberAssignment | Iterable[TopicPartition]]
"""An assignor's answer: partitions by member id, alone or with user data. A missing member gets nothing."""


class ConsumerPartitionAssignor(ABC):
    """Assigns partitions to the members of a group. Subclass it to write your own assignor.

    Every member of the group offers its assignors; the group uses one that all of them have, by ``name``. One member computes the
    assignment of all: the leader of a classic group, or any member of a consumer group (``group_client_assignors``). Each consumer
    has its own instance, whose methods are called on the thread that calls ``poll()``, never concurrently.
    """

    name: str
    """What the members of the group call it on the wire."""

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """Data about this member for the member that assigns; ``topics`` are the subscribed ones. Empty bytes mean the same as
        ``None``.

        In a classic group it is called for each join. In a consumer group only ``subscribe()`` calls it: a changed value makes the
        group assign again.
        """
        return None

    @abstractmethod
    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> Shares:
        """Compute the assignment. Called in one member only. A subscribed topic that ``cluster`` does not name does not exist.

        In a classic group a ``COOPERATIVE`` assignor must not give a partition to a member while another one still owns it: it
        leaves it out, and is called again as soon as the owner has given it up. In a consumer group it may assign it: the
        coordinator makes the owner give it up first. If it leaves it out anyway, it is called again at once, as if the owner had
        given it up.

        This member's ``poll()`` raises what it raises, and in a consumer group every member's ``poll()`` does.
        """

    def on_assignment(  # noqa: B027 - may be left out
        self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata
    ) -> None:
        """This member's assignment of a new generation or member epoch, before ``on_assign`` is called."""

    def supported_protocols(self) -> Sequence[RebalanceProtocol]:
        """The rebalance protocols that the assignor works with."""
        return (RebalanceProtocol.EAGER,)

    def version(self) -> int:
        """The version of the user data.

        It is not used in a classic group. The members of a consumer group share an assignor only if all have the same version of
        it. It is called once, when the consumer is created.
        """
        return 0


def in_order(members: Mapping[str, MemberSubscription], member_ids: Iterable[str]) -> list[str]:
    """Static members first, by instance id (which survives restarts), then the others by member id."""

    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (True, member_id) if instance_id is None else (False, instance_id)

    return sorted(member_ids, key=rank)


def subscribed_topics(cluster: Cluster, members: Mapping[str, MemberSubscription]) -> list[str]:
    """The topics that a member subscribes to and that have partitions, sorted."""
    wanted = {topic for member in members.values() for topic in member.topics}
    return sorted(topic for topic in wanted if cluster.partitions.get(topic))


def racks_matter(members: Iterable[MemberSubscription], racks: Sequence[frozenset[str]]) -> bool:
    """Whether some of these partitions are nearer to some members than others (KIP-881)."""
    everywhere = frozenset[str]().union(*racks)
    return any(member.rack in everywhere for member in members if member.rack) and any(one != everywhere for one in racks)
