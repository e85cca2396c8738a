"""The leader of a classic group: it has all members' subscriptions, and assigns the partitions.

Owns the subscriptions of the members and the partitions at the time of the last assignment. Must not know requests, states or
timers. Invariants: the metadata for an assignment is newer than its JoinGroup, and has every topic of the group; no assignment has
a partition twice, whichever assignor computed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.assignors import ASSIGNORS, Cluster, MemberAssignment, MemberSubscription, Strategy
from ottla.client.cluster.metadata import Metadata, MetadataManager
from ottla.errors import AssignmentError, ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import Assignment, Subscription, decode_subscription, encode_assignment
from ottla.protocol.messages import join_group_response
from ottla.types import TopicPartition


class GroupLeader:
    """The leader in one generation. Raises ``ProtocolError`` for a member whose subscription is malformed.

    ``follows_racks``: whether the group must rebalance when replicas move to other racks.
    """

    def __init__(
        self,
        assignor: str,
        members: Iterable[join_group_response.JoinGroupResponseMember],
        metadata: MetadataManager,
        strategy: Strategy,
        *,
        follows_racks: bool = False,
    ) -> None:
        subscriptions = {item.member_id: (item.group_instance_id, _subscription(item)) for item in members}
        self.members = {
            member_id: MemberSubscription(read.topics, instance_id, read.rack, read.owned, read.generation, read.user_data)
            for member_id, (instance_id, read) in subscriptions.items()
        }
        self.topics = frozenset(topic for member in self.members.values() for topic in member.topics)
        """All topics that any member subscribes to."""
        self.foreign = assignor in strategy.foreign
        """Whether the group uses an assignor of the application."""
        self.application_asked = False
        """Whether the application was asked to run the assignor."""
        self._assignor = assignor
        self._cooperative = strategy.cooperative
        self._follows_racks = follows_racks
        self._metadata = metadata
        self._fresh_after = metadata.request_update()
        self._assigned_for: Cluster | None = None
        self._up_to_date_with: Metadata | None = None
        """The last metadata for which the assignment was found to be up to date."""

    def cluster(self) -> Cluster | None:
        """Return the partitions to assign; ``None`` while the metadata is not fresh.

        1. A member creates a topic, subscribes to it and joins.
        2. The leader's metadata is from before that. Without fresh metadata it would leave the new topic out.
        """
        current = self._metadata.current
        if current.version <= self._fresh_after:
            return None
        if not self._metadata.follows_all and not all(topic in current.topics for topic in self.topics):
            self._fresh_after = self._metadata.request_update()
            return None
        self.keep_assignment()
        return _cluster(current, self.topics, with_racks=True)

    def assign(self, cluster: Cluster) -> dict[str, bytes]:
        """Return member id -> encoded assignment, by one of Ottla's own assignors."""
        return _encoded(ASSIGNORS[self._assignor]().assign(cluster, self.members))

    def check(self, shares: Mapping[str, MemberAssignment]) -> dict[str, bytes]:
        """Return member id -> encoded assignment, from the result of the user's assignor.

        Raises ``AssignmentError`` for a result that gives a partition to two members, or one that a member cannot use: it would
        join again and again, or wait for a partition that does not exist.
        """
        name = self._assignor
        if unknown := shares.keys() - self.members.keys():
            raise AssignmentError(f"the assignor {name!r} named members that are not in the group: {', '.join(sorted(unknown))}")
        assigned: dict[TopicPartition, str] = {}
        for member_id, share in shares.items():
            for tp in share.partitions:
                if wrong := self._reason_not_assignable(member_id, tp):
                    raise AssignmentError(f"the assignor {name!r} gave member {member_id} partition {tp.partition} of {wrong}")
                if assigned.setdefault(tp, member_id) is not member_id:
                    raise AssignmentError(f"the assignor {name!r} gave {tp} to {assigned[tp]} and to {member_id}")
        owners = {tp: member_id for member_id, member in self.members.items() for tp in member.owned} if self._cooperative else {}
        for tp, member_id in assigned.items():
            if owners.get(tp, member_id) != member_id and tp not in self.members[member_id].owned:
                raise AssignmentError(
                    f"the assignor {name!r} gave {tp} to {member_id} while {owners[tp]} owns it",
                    hint="a cooperative assignor leaves a partition out until its owner has given it up",
                )
        return _encoded({**{member_id: MemberAssignment(()) for member_id in self.members}, **shares})

    def _reason_not_assignable(self, member_id: str, tp: TopicPartition) -> str | None:
        """Return why a member cannot get a partition; ``None`` if it can."""
        if tp.topic not in self.members[member_id].topics:
            return f"{tp.topic}, which it did not subscribe to"
        count = 0 if self._assigned_for is None else self._assigned_for.partitions.get(tp.topic, 0)
        if tp.partition < count:
            return None
        return f"{tp.topic}, which has partitions 0 to {count - 1}" if count else f"{tp.topic}, which does not exist"

    def keep_assignment(self, former: GroupLeader | None = None) -> None:
        """Note that the assignment covers the partitions that exist now, or those for which the ``former`` leader computed it.

        Only the leader detects new partitions. So a static leader that has returned and must not assign (KIP-814) notes them as
        well. If it computed the assignment itself, before it left because the application did not poll, it knows which partitions
        were added since; a new process does not.
        """
        if former is not None and former._assigned_for is not None:
            self._assigned_for = former._assigned_for
            return
        self._assigned_for = _cluster(self._metadata.current, self.topics, with_racks=self._follows_racks)
        self._up_to_date_with = self._metadata.current

    def is_outdated(self) -> bool:
        """Whether there are unassigned partitions, or assigned ones that were deleted or have moved to other racks."""
        current = self._metadata.current
        if self._assigned_for is None or self._up_to_date_with is current:
            return False  # in nearly all cases
        settled = self._metadata.follows_all or all(_is_settled(current, topic) for topic in self.topics)
        if not settled:
            return False
        if self._assigned_for != _cluster(current, self.topics, with_racks=self._follows_racks):
            return True
        self._up_to_date_with = current
        return False


def _subscription(member: join_group_response.JoinGroupResponseMember) -> Subscription:
    try:
        return decode_subscription(member.metadata)
    except ProtocolError as error:
        text = f"what member {member.member_id} subscribes to cannot be read: {error.args[0]}"
        raise ProtocolError(text, hint="which client does that member run?", cause=error) from error


def _cluster(metadata: Metadata, topics: frozenset[str], *, with_racks: bool) -> Cluster:
    """Return the existing topics with their partitions; with racks if any broker has one."""
    existing = {topic: len(partitions) for topic in sorted(topics) if (partitions := metadata.partitions_for(topic))}
    return Cluster(existing, metadata.replica_racks(existing) if with_racks else {})


def _encoded(shares: Mapping[str, MemberAssignment]) -> dict[str, bytes]:
    return {member_id: encode_assignment(Assignment(share.partitions, share.user_data)) for member_id, share in shares.items()}


def _is_settled(metadata: Metadata, topic: str) -> bool:
    """Whether the latest metadata describes a topic, or reports that it does not exist."""
    description = metadata.topics.get(topic)
    return description is not None and (description.error is None or description.error.code == ErrorCode.unknown_topic_or_partition)
