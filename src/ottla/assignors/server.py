"""The interface between the group coordinator and an assignor of a consumer group (KIP-848).

Owns the interface of server-side assignors, and the check of answers from outside. Must not know any one of them,
nor groups, epochs and time. Invariants: an assignment names topics by id, lists partition numbers in ascending order and has no
empty entry; an answer that `checked` lets pass gives every partition at most once, and to a subscriber of its topic.

Topics are known by id, so a topic that was deleted and recreated is another topic. The assignment of a member whose partitions do
not change is the same object as in the input: the coordinator finds what to write with ``is not``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from ottla.errors import AssignmentError
from ottla.types import whole

Assignment = Mapping[UUID, tuple[int, ...]]
"""By topic id the partitions of one member, ascending; a topic of which it has none is left out."""

EMPTY: Assignment = {}
"""No partitions; never to be written to."""


class TopicSpec(NamedTuple):
    """A topic that a member subscribed to."""

    name: str
    partitions: int


class MemberSpec(NamedTuple):
    """The subscription of one member: ids of existing topics, names and regular expression resolved. Many members may share one."""

    topics: frozenset[UUID]
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True)
class GroupSpec:
    """The input. The mappings may be read, but must not be kept or written to.

    ``members``: the members to assign to, by member id. ``assignments``: the previous assignment, by member id; members that are
    missing there have nothing, members that are only there have left. ``topics``: all subscribed topics, by id.
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
        """The topics that at least one member wants. Raises ``AssignmentError`` if one of them does not exist."""
        subscriptions = self._subscriptions[:1] if self.homogeneous else self._subscriptions
        wanted = frozenset[UUID]().union(*subscriptions)
        if missing := wanted - self.topics.keys():
            raise AssignmentError(f"members subscribed to topics that do not exist: {', '.join(sorted(map(str, missing)))}")
        return wanted

    @cached_property
    def _subscriptions(self) -> list[frozenset[UUID]]:
        """Each object once: members with the same subscription usually share it, and comparing thousands is slow."""
        topics = [member.topics for member in self.members.values()]
        return list(dict(zip(map(id, topics), topics, strict=True)).values())


PartitionAssignor = Callable[[GroupSpec], Mapping[str, Mapping[UUID, Iterable[int]]]]
"""An assignor as a user may write it: member id -> topic id -> partition numbers. A member that is missing in the answer gets
nothing.

It must be a pure function of its argument. After an exception the group keeps its assignment, and the answer to the heartbeat that
started it says so.
"""


def checked(
    group: GroupSpec, answer: Mapping[str, Mapping[UUID, Iterable[int]]], who: str = "the assignor"
) -> dict[str, Assignment]:
    """An answer from outside, in the form that the coordinator stores; every member has an entry.

    Raises ``AssignmentError`` if it names an unknown member, gives a member a topic that it did not subscribe to, a
    partition that does not exist, or one partition twice. An assignor may leave a partition without an owner.
    """
    if not isinstance(answer, Mapping):
        raise AssignmentError(f"{who} returned {answer!r}, not a mapping from member ids to partitions")
    if strangers := answer.keys() - group.members.keys():
        raise AssignmentError(f"{who} named members that are not in the group: {', '.join(sorted(map(str, strangers)))}")
    taken: dict[UUID, set[int]] = {}
    targets: dict[str, Assignment] = {}
    for member_id, member in group.members.items():
        target: dict[UUID, tuple[int, ...]] = {}
        given = answer.get(member_id, EMPTY)
        if not isinstance(given, Mapping):
            raise AssignmentError(f"{who} gave member {member_id} {given!r}, not a mapping from topic ids to partitions")
        for topic_id, numbers in given.items():
            if not isinstance(numbers, Iterable) or isinstance(numbers, str | bytes):
                raise AssignmentError(f"{who} gave member {member_id} {numbers!r}, not partitions of {_name(group, topic_id)}")
            share = frozenset(number if (plain := whole(number)) is None else plain for number in numbers)
            if wrong := _wrong(group, member, topic_id, share, taken.setdefault(topic_id, set())):
                raise AssignmentError(f"{who} gave member {member_id} {wrong}")
            if share:
                target[topic_id] = tuple(sorted(share))
        before = group.assignments.get(member_id)
        targets[member_id] = target if before is None or before != target else before
    return targets


def _wrong(group: GroupSpec, member: MemberSpec, topic_id: UUID, share: Set[int], taken: set[int]) -> str | None:
    """The error in one member's share of a topic, of which ``taken`` are already assigned; the share is added to them."""
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
