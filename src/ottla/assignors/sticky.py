"""``sticky`` and ``cooperative-sticky``: balanced assignments that move as few partitions as possible.

Owns the code common to both, and where each finds the previous assignment. Must not know the algorithms: ``sticky_constrained`` for
equal subscriptions, ``sticky_general`` for others. Invariants: a claim of a later generation overrides one of an earlier;
``cooperative-sticky`` assigns no partition that another member has yet to revoke.

Source: StickyAssignor (KIP-54, KIP-341) and CooperativeStickyAssignor (KIP-429) of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.assignors import sticky_constrained, sticky_general
from ottla.assignors.interface import (
    Cluster,
    ConsumerPartitionAssignor,
    MemberAssignment,
    MemberSubscription,
    RebalanceProtocol,
    subscribed_topics,
)
from ottla.assignors.owned_partitions import (
    NO_GENERATION,
    OwnedPartitions,
    StickyUserData,
    decode_generation,
    decode_sticky,
    encode_generation,
    encode_sticky,
    resolve_claims,
)
from ottla.assignors.rack_affinity import RackAffinity
from ottla.types import ConsumerGroupMetadata, TopicPartition

_Shared = dict[str, list[TopicPartition]]


class StickyAssignor(ConsumerPartitionAssignor):
    """Eager: members revoke all partitions before they join, so their previous assignment is in their user data.

    Only members of a consumer group still own partitions when ``assign()`` is called: their previous assignment.
    """

    name = "sticky"

    def __init__(self) -> None:
        self._last: MemberAssignment | None = None
        self._generation = NO_GENERATION

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """The last assignment and its generation."""
        return None if self._last is None else encode_sticky(self._last.partitions, self._generation)

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Store the assignment for the next join."""
        self._last, self._generation = assignment, metadata.generation_id

    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        """See ``ConsumerPartitionAssignor.assign``."""
        claims = {
            member_id: StickyUserData(member.owned, member.generation) if member.owned else decode_sticky(member.user_data)
            for member_id, member in members.items()
        }
        shared, _ = _share(cluster, members, claims)
        return _answer(shared)


class CooperativeStickyAssignor(ConsumerPartitionAssignor):
    """Cooperative: the members' partitions are in their subscriptions. Also supports eager groups, where members own none."""

    name = "cooperative-sticky"

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def supported_protocols(self) -> Sequence[RebalanceProtocol]:
        """Cooperative and eager."""
        return (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """The last generation, for leaders that do not read it from the subscription."""
        return encode_generation(self._generation)

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Store the generation for the next join."""
        self._generation = metadata.generation_id

    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        """See ``ConsumerPartitionAssignor.assign``. Leaves out a partition that moves, until its owner has revoked it."""
        claims = {
            member_id: StickyUserData(
                member.owned, member.generation if member.generation >= 0 else decode_generation(member.user_data)
            )
            for member_id, member in members.items()
        }
        shared, owned = _share(cluster, members, claims)
        owners = owned.owners()
        free = {
            member_id: [tp for tp in share if owners.get(tp, member_id) == member_id and tp not in owned.disputed]
            for member_id, share in shared.items()
        }
        return _answer(free)


def _share(
    cluster: Cluster, members: Mapping[str, MemberSubscription], claims: Mapping[str, StickyUserData]
) -> tuple[_Shared, OwnedPartitions]:
    topics = subscribed_topics(cluster, members)
    partitions = [TopicPartition(topic, number) for topic in topics for number in range(cluster.partitions[topic])]
    owned = resolve_claims(claims, frozenset(partitions))
    affinity = RackAffinity(cluster, members, partitions)
    if len({frozenset(member.topics) for member in members.values()}) <= 1:
        return sticky_constrained.share(partitions, owned, affinity), owned
    return sticky_general.share(partitions, members, owned, affinity), owned


def _answer(shared: _Shared) -> dict[str, MemberAssignment]:
    return {member_id: MemberAssignment(tuple(sorted(share))) for member_id, share in shared.items()}
