"""``sticky`` and ``cooperative-sticky``: as even as it can be, and as little as possible changes hands.

Owns what the two have in common and where each knows the past from. Must not know how partitions are shared: members who all want
the same are served by ``sticky_alike``, others by ``sticky_mixed``. Invariants: a claim of an earlier generation does not stand
against one of a later; ``cooperative-sticky`` gives no member a partition that another member still has to give up.

Source: StickyAssignor (KIP-54, KIP-341) and CooperativeStickyAssignor (KIP-429) of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.assignors import sticky_alike, sticky_mixed
from ottla.assignors.interface import (
    Cluster,
    ConsumerPartitionAssignor,
    MemberAssignment,
    MemberSubscription,
    RebalanceProtocol,
    subscribed_topics,
)
from ottla.assignors.owned_partitions import OwnedPartitions, resolve_claims
from ottla.assignors.rack_affinity import RackAffinity
from ottla.protocol.sticky_user_data import (
    NO_GENERATION,
    StickyUserData,
    decode_generation,
    decode_sticky,
    encode_generation,
    encode_sticky,
)
from ottla.types import ConsumerGroupMetadata, TopicPartition

_Shared = dict[str, list[TopicPartition]]


class StickyAssignor(ConsumerPartitionAssignor):
    """Eager: members give up everything before they join, so their previous assignment is in their user data.

    Only members of a consumer group still own partitions when this is called: those are their previous assignment.
    """

    name = "sticky"

    def __init__(self) -> None:
        self._last: MemberAssignment | None = None
        self._generation = NO_GENERATION

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """What was held last, and in which generation."""
        return None if self._last is None else encode_sticky(self._last.partitions, self._generation)

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Remember it for the next join."""
        self._last, self._generation = assignment, metadata.generation_id

    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        """See ``ConsumerPartitionAssignor.assign``."""
        said = {
            member_id: StickyUserData(member.owned, member.generation) if member.owned else decode_sticky(member.user_data)
            for member_id, member in members.items()
        }
        shared, _ = _share(cluster, members, said)
        return _answer(shared)


class CooperativeStickyAssignor(ConsumerPartitionAssignor):
    """Cooperative: what members hold is in their subscriptions. It can be used by eager groups as well, who then hold nothing."""

    name = "cooperative-sticky"

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def supported_protocols(self) -> Sequence[RebalanceProtocol]:
        """Both."""
        return (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """The last generation, for leaders that know no newer place for it."""
        return encode_generation(self._generation)

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Remember the generation."""
        self._generation = metadata.generation_id

    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        """See ``ConsumerPartitionAssignor.assign``. What changes hands is left out until it was given up."""
        said = {
            member_id: StickyUserData(
                member.owned, member.generation if member.generation >= 0 else decode_generation(member.user_data)
            )
            for member_id, member in members.items()
        }
        shared, claims = _share(cluster, members, said)
        owners = claims.owners()
        free = {
            member_id: [tp for tp in share if owners.get(tp, member_id) == member_id and tp not in claims.disputed]
            for member_id, share in shared.items()
        }
        return _answer(free)


def _share(
    cluster: Cluster, members: Mapping[str, MemberSubscription], said: Mapping[str, StickyUserData]
) -> tuple[_Shared, OwnedPartitions]:
    topics = subscribed_topics(cluster, members)
    partitions = [TopicPartition(topic, number) for topic in topics for number in range(cluster.partitions[topic])]
    claims = resolve_claims(said, frozenset(partitions))
    affinity = RackAffinity(cluster, members, partitions)
    if len({frozenset(member.topics) for member in members.values()}) <= 1:
        return sticky_alike.share(partitions, claims, affinity), claims
    return sticky_mixed.share(partitions, members, claims, affinity), claims


def _answer(shared: _Shared) -> dict[str, MemberAssignment]:
    return {member_id: MemberAssignment(tuple(sorted(share))) for member_id, share in shared.items()}
