"""What the group coordinator asks an assignor of a consumer group, and what it answers (KIP-848).

Owns the interface of server-side assignors, and the check of answers that somebody else computed. Must not know any one of them,
nor groups, epochs and time. Invariants: an assignment names topics by id, lists partition numbers in ascending order and has no
empty entry; an answer that `checked` lets pass gives every partition at most once, and to a subscriber of its topic.

Topics are known by id, so a topic that was deleted and made anew is another topic. The assignment of a member whose partitions do
not change is the very object that came in: what is to be written is found with ``is not``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from ottla.errors import AssignmentError

Assignment = Mapping[UUID, tuple[int, ...]]
"""By topic id the partitions of one member, ascending; a topic of which it has none is left out."""

EMPTY: Assignment = {}
"""No partitions; never to be written to."""


class TopicSpec(NamedTuple):
    """A topic that somebody subscribed to."""

    name: str
    partitions: int


class MemberSpec(NamedTuple):
    """What one member wants: ids of existing topics, names and regular expression resolved. Many members may share one."""

    topics: frozenset[UUID]
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True)
class GroupSpec:
    """The question. The mappings are read, never kept and never written to.

    ``members``: who shall have an assignment, by member id. ``assignments``: what they have been given before, by member id; who is
    not in there has nothing, who is only in there has left. ``topics``: all that anybody subscribed to, by id.
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
        """Each object once: members with the same subscription usually share it, and comparing thousands takes its time."""
        topics = [member.topics for member in self.members.values()]
        return list(dict(zip(map(id, topics), topics, strict=True)).values())


PartitionAssignor = Callable[[GroupSpec], Mapping[str, Mapping[UUID, Iterable[int]]]]
"""An assignor as a user may write it: member id -> topic id -> partition numbers. Who is left out of the answer gets nothing.

It must be a pure function of its argument. An exception leaves the group with the assignment that it has, and the member whose
heartbeat asked is told so.
"""


def checked(
    group: GroupSpec, answer: Mapping[str, Mapping[UUID, Iterable[int]]], who: str = "the assignor"
) -> dict[str, Assignment]:
    """An answer that somebody else computed, in the form that the coordinator keeps; every member has an entry.

    Raises ``AssignmentError`` if it names somebody who is no member, gives a member a topic that it did not subscribe to, a
    partition that is not there, or one partition twice. A partition may be left without an owner: that is the assignor's choice.
    """
    if strangers := answer.keys() - group.members.keys():
        raise AssignmentError(f"{who} named members that are not in the group: {', '.join(sorted(strangers))}")
    taken: dict[UUID, set[int]] = {}
    targets: dict[str, Assignment] = {}
    for member_id, member in group.members.items():
        target: dict[UUID, tuple[int, ...]] = {}
        for topic_id, numbers in answer.get(member_id, EMPTY).items():
            share = frozenset(numbers)
            if wrong := _wrong(group, member, topic_id, share, taken.setdefault(topic_id, set())):
                raise AssignmentError(f"{who} gave member {member_id} {wrong}")
            if share:
                target[topic_id] = tuple(sorted(share))
        before = group.assignments.get(member_id)
        targets[member_id] = target if before is None or before != target else before
    return targets


def _wrong(group: GroupSpec, member: MemberSpec, topic_id: UUID, share: Set[int], taken: set[int]) -> str | None:
    """What is wrong with one member's share of a topic, of which ``taken`` are given already; it is added to them."""
    if topic_id not in member.topics or topic_id not in group.topics:
        name = group.topics[topic_id].name if topic_id in group.topics else topic_id
        return f"partitions of topic {name}, which it did not subscribe to"
    topic = group.topics[topic_id]
    if absent := [number for number in share if not isinstance(number, int) or not 0 <= number < topic.partitions]:
        return f"partitions {absent} of {topic.name}, which has partitions 0 to {topic.partitions - 1}"
    if twice := taken & share:
        return f"partitions {sorted(twice)} of {topic.name}, which it gave to another member as well"
    taken |= share
    return None
