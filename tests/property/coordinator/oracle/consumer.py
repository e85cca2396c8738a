"""Invariants of consumer groups, and of the partitions that their members read.

Owns the ownership of partitions, the order of epochs, and the target. Must not know how a target is computed, only what
every target must be. Invariant: reads, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from ottla.coordinator.consumer.group import LEAVE_GROUP_STATIC_EPOCH, ConsumerGroup, MemberState
from ottla.types import TopicPartition
from tests.property.coordinator.oracle.log import LogOfGroups
from tests.unit.coordinator.harness import Harness


class Reading(NamedTuple):
    """The partitions that a client reads as a member of a group."""

    group_id: str
    member_id: str
    partitions: frozenset[TopicPartition]


class ConsumerGroups:
    """The consumer groups of one harness, and their clients' ``readings``."""

    def __init__(self, harness: Harness, log: LogOfGroups, readings: Callable[[], list[Reading]]) -> None:
        self.harness = harness
        self.log = log
        self._readings = readings
        self._epochs: dict[str, tuple[int, int, int]] = {}

    def groups(self) -> list[ConsumerGroup]:
        """The groups."""
        return [group for group in self.harness.coordinator.groups().values() if isinstance(group, ConsumerGroup)]

    def partitions_have_one_owner(self) -> None:
        """No partition has two owners, and the map of owners names the one."""
        for group in self.groups():
            owner_epochs: dict[Any, int] = {}
            for member in group.members.values():
                for topic_id, numbers in member.owned_partitions():
                    for number in numbers:
                        assert (topic_id, number) not in owner_epochs, "two members hold it"
                        owner_epochs[topic_id, number] = member.epoch
            known = {(topic, number): epoch for topic, numbers in group.owners.items() for number, epoch in numbers.items()}
            assert known == owner_epochs

    def readers_are_owners(self) -> None:
        """A partition that a member reads is not assigned to another before the member has revoked it or left."""
        groups = {group.group_id: group for group in self.groups()}
        name_of = self.harness.topics.name_of
        for group_id, member_id, partitions in self._readings():
            member = groups[group_id].members.get(member_id) if group_id in groups else None
            if member is not None:
                owned_partitions = {
                    TopicPartition(name_of(topic_id) or "", n) for topic_id, numbers in member.owned_partitions() for n in numbers
                }
                assert partitions <= owned_partitions

    def epochs_are_in_order(self) -> None:
        """Member epoch <= assignment epoch <= group epoch; a member without partitions to revoke is not revoking."""
        for group in self.groups():
            assert 1 <= group.assignment_epoch <= group.epoch
            for member in group.members.values():
                assert member.epoch == LEAVE_GROUP_STATIC_EPOCH or 0 < member.epoch <= group.assignment_epoch
                assert member.state is not MemberState.UNREVOKED_PARTITIONS or member.revoking
                assert member.state is MemberState.UNREVOKED_PARTITIONS or not member.revoking

    def epochs_never_decrease(self) -> None:
        """Neither epoch of a group decreases while the group exists."""
        self.log.read_on()
        deleted = self.log.deletions
        epochs = {group.group_id: (deleted[group.group_id], group.epoch, group.assignment_epoch) for group in self.groups()}
        for name, (deletions, epoch, assignment_epoch) in self._epochs.items():
            if epochs.get(name, (-1, 0, 0))[0] == deletions:
                assert epochs[name][1] >= epoch
                assert epochs[name][2] >= assignment_epoch
        self._epochs = epochs

    def the_target_has_one_owner_per_partition(self) -> None:
        """Each partition of the target has one owner, a member of the group."""
        for group in self.groups():
            given = [(topic_id, n) for target in group.target.values() for topic_id, numbers in target.items() for n in numbers]
            assert len(given) == len(set(given))
            assert group.target.keys() <= group.members.keys()

    def the_target_is_complete(self) -> None:
        """Each existing subscribed partition has an owner that subscribes to it, and no other partition has one."""
        for group in self._up_to_date():
            counts, image = self.harness.topics.counts, self.harness.topics
            given = {(topic_id, n) for target in group.target.values() for topic_id, numbers in target.items() for n in numbers}
            topics = group.subscribed_topics() & counts.keys()
            assert given == {(image.topic_id(topic), number) for topic in topics for number in range(counts[topic])}
            for member_id, target in group.target.items():
                assert {image.name_of(topic_id) for topic_id in target} <= group.topics_of(group.members[member_id].metadata)

    def the_target_is_balanced(self) -> None:
        """With equal subscriptions no member has two partitions more than another: in total, or of each topic contiguously."""
        for group in self._up_to_date():
            subscriptions = {frozenset(group.topics_of(member.metadata)) for member in group.members.values()}
            if len(subscriptions) == 1:
                shares = [group.target.get(member_id, {}) for member_id in group.members]
                totals = [sum(len(numbers) for numbers in share.values()) for share in shares]
                topics = {topic_id for share in shares for topic_id in share}
                assert _is_even(totals) or all(_is_even_range([share.get(topic_id, ()) for share in shares]) for topic_id in topics)

    def cached_counts_are_correct(self) -> None:
        """Each cached count equals a new count."""
        for group in self.groups():
            members = [member.metadata for member in group.members.values()]
            assert group.subscribers == Counter(topic for one in members for topic in one.subscribed_topic_names)
            assert group.regex_subscribers == Counter(one.subscribed_topic_regex for one in members if one.subscribed_topic_regex)
            assert group.regexes.keys() <= group.regex_subscribers.keys()
            assert group.votes == Counter(one.server_assignor for one in members if one.server_assignor)
            statics = {member.instance_id: member_id for member_id, member in group.members.items() if member.instance_id}
            assert group.static_members == statics
            assert len(statics) == len([one for one in members if one.instance_id])

    def _up_to_date(self) -> list[ConsumerGroup]:
        """Groups whose target is current, and was not made by a classic leader."""
        return [
            group
            for group in self.groups()
            if group.epoch == group.assignment_epoch
            and group.image_version == self.harness.topics.version
            and group.assignment_timestamp
        ]


def _is_even(counts: list[int]) -> bool:
    return max(counts) - min(counts) <= 1


def _is_even_range(shares: list[Any]) -> bool:
    in_one_piece = all(sorted(share) == list(range(min(share), max(share) + 1)) for share in shares if share)
    return in_one_piece and _is_even([len(share) for share in shares])
