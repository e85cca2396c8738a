"""The interface between the group coordinator and an assignor of a consumer group (KIP-848).

Owns the interface of server-side assignors, and the check of assignments that were computed elsewhere. Must not know any assignor,
nor groups, epochs and time. Invariants: an assignment has topic ids, partition numbers in ascending order and no empty entry; an
assignment that `checked` accepts has every partition at most once, and assigns it to a subscriber of its topic.

Topics have ids, so a topic that was deleted and recreated is another topic. The assignment of a member whose partitions do not
change is the same object as in the input: the coordinator compares with ``is not`` to find the records to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from ottla.errors import AssignmentError
from ottla.types import as_integer

Assignment = Mapping[UUID, tuple[int, ...]]
"""Topic id -> the partitions of one member, ascending; a topic without any is missing."""

EMPTY: Assignment = {}
"""No partitions. It must not be changed."""


class TopicSpec(NamedTuple):
    """A topic to which a member subscribed."""

    name: str
    partitions: int


class MemberSpec(NamedTuple):
    """The subscription of one member: its names and regular expression, resolved to ids of existing topics. Members may share
    one."""

    topics: frozenset[UUID]
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True)
class GroupSpec:
    """The input of an assignor, which must not keep or change the mappings.

    ``members``: the members to assign to, by member id. ``assignments``: the previous assignments, by member id; a member without
    one has no partitions, an assignment without a member is from one that left. ``topics``: all subscribed topics, by id.
    """

    members: Mapping[str, MemberSpec]
    assignments: Mapping[str, Assignment]
    topics: Mapping[UUID, TopicSpec]

    @cached_property
    def homogeneous(self) -> bool:
        """Whether all members subscribed to the same topics."""
        return all(topics == self._subscriptions[0] for topics in self._subscriptions)

    @cached_property
    def subscribed(self) -> frozenset[UUID]:
        """The topics to which at least one member subscribed. Raises ``AssignmentError`` if one of them does not exist."""
        subscriptions = self._subscriptions[:1] if self.homogeneous else self._subscriptions
        subscribed = frozenset[UUID]().union(*subscriptions)
        if missing := subscribed - self.topics.keys():
            raise AssignmentError(f"members subscribed to topics that do not exist: {', '.join(sorted(map(str, missing)))}")
        return subscribed

    @cached_property
    def _subscriptions(self) -> list[frozenset[UUID]]:
        """Each object once: members with equal subscriptions usually share one object, and comparing thousands of sets is slow."""
        topics = [member.topics for member in self.members.values()]
        return list(dict(zip(map(id, topics), topics, strict=True)).values())


PartitionAssignor = Callable[[GroupSpec], Mapping[str, Mapping[UUID, Iterable[int]]]]
"""A user's assignor: returns member id -> topic id -> partition numbers. A missing member gets no partitions.

It must be a pure function of its argument. After an exception the group keeps its assignment, and the response to the heartbeat
that called the assignor has the error.
"""


def checked(
    group: GroupSpec, answer: Mapping[str, Mapping[UUID, Iterable[int]]], assignor: str = "the assignor"
) -> dict[str, Assignment]:
    """Check an assignment and convert it to the form that the coordinator stores; every member has an entry.

    Raises ``AssignmentError`` for an unknown member, a topic to which the member did not subscribe, a partition that does not
    exist, and a partition that is assigned twice. A partition may have no owner.
    """
    if not isinstance(answer, Mapping):
        raise AssignmentError(f"{assignor} returned {answer!r}, not a mapping from member ids to partitions")
    if unknown := answer.keys() - group.members.keys():
        raise AssignmentError(f"{assignor} named members that are not in the group: {', '.join(sorted(map(str, unknown)))}")
    taken: dict[UUID, set[int]] = {}
    targets: dict[str, Assignment] = {}
    for member_id, member in group.members.items():
        target: dict[UUID, tuple[int, ...]] = {}
        given = answer.get(member_id, EMPTY)
        if not isinstance(given, Mapping):
            raise AssignmentError(f"{assignor} gave member {member_id} {given!r}, not a mapping from topic ids to partitions")
        for topic_id, numbers in given.items():
            if not isinstance(numbers, Iterable) or isinstance(numbers, str | bytes):
                raise AssignmentError(f"{assignor} gave member {member_id} {numbers!r}, not partitions of {_name(group, topic_id)}")
            share = frozenset(number if (plain := as_integer(number)) is None else plain for number in numbers)
            if wrong := _wrong(group, member, topic_id, share, taken.setdefault(topic_id, set())):
                raise AssignmentError(f"{assignor} gave member {member_id} {wrong}")
            if share:
                target[topic_id] = tuple(sorted(share))
        before = group.assignments.get(member_id)
        targets[member_id] = target if before is None or before != target else before
    return targets


def _wrong(group: GroupSpec, member: MemberSpec, topic_id: UUID, share: Set[int], taken: set[int]) -> str | None:
    """The error in one member's ``share`` of a topic, or ``None``. The share is added to ``taken``, the assigned partitions."""
    if topic_id not in member.topics or topic_id not in group.topics:
        return f"partitions of topic {_name(group, topic_id)}, which it did not subscribe to"
    topic = group.topics[topic_id]
    if absent := [number for number in share if not isinstance(number, int) or not 0 <= number < topic.partitions]:
        return f"partitions {absent} of {topic.name}, which has partitions 0 to {topic.partitions - 1}"
    if twice := taken & share:
        return f"partitions {sorted(twice)} of {topic.name}, which it gave to another member as well"
    taken |= share
    return None


def _name(group: GroupSpec, topic_id: UUID) -> str:
    return group.topics[topic_id].name if topic_id in group.topics else str(topic_id)
