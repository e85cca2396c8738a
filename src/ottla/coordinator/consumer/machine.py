"""What each event does to a consumer group.

Owns every change of a group, and that what is computed from members (who owns a partition, how many subscribe to a topic) fits
them. ``apply`` is a pure function; handlers use it to see where their decision leads, and ``replay`` to apply it, live and on load
alike. Must not know requests, answers or timers. Invariant: a log from which compaction has dropped superseded records leads to the
same group; no record is too much or too little for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, assert_never
from uuid import UUID

from ottla.assignors import Assignment
from ottla.coordinator.consumer.client_side import ClientAssignment
from ottla.coordinator.consumer.events import (
    AssignorRunEnded,
    AssignorRunEvent,
    AssignorRunPrepared,
    AssignorRunStarted,
    AssignorRunTimedOut,
    ConsumerEvent,
    RegexResolutionEnded,
    RegexResolutionStarted,
    TopicMetadataRefreshed,
)
from ottla.coordinator.consumer.group import (
    LEAVE,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    partition_epochs_of,
    stored_partitions,
)
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    MemberSubscriptionUpdated,
    PartitionMetadataDeleted,
    ResolvedRegexUpdated,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
)
from ottla.protocol.group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberValue,
    TargetTopicPartitions,
)

_NO_CLIENT_SIDE = ClientAssignment()


def apply(group: ConsumerGroup, *events: ConsumerEvent) -> ConsumerGroup:
    """The group after events."""
    return ConsumerGroupUpdate(group).after(events)


class ConsumerGroupUpdate:
    """A group while events are applied to it. Each mapping is copied once, however many events change it."""

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self._changed: dict[str, Any] = {}
        self._topics: set[UUID] = set()
        """Topics whose part of ``owners`` has been copied."""

    def after(self, events: Iterable[ConsumerEvent]) -> ConsumerGroup:
        """The group after events."""
        for event in events:
            self.apply(event)
        return self.group()

    def group(self) -> ConsumerGroup:
        """The group as it is now; no more events may be applied."""
        return replace(self._group, **self._changed) if self._changed else self._group

    def apply(self, event: ConsumerEvent) -> None:
        """Apply an event."""
        match event:
            case CurrentAssignmentUpdated(_, member_id, current):
                self._current(member_id, current)
            case TargetAssignmentUpdated(_, member_id, target):
                self._target(member_id, target)
            case MemberSubscriptionUpdated(_, member_id, metadata):
                self._subscription(member_id, metadata)
            case GroupEpochUpdated(_, value):
                if value is not None:  # without one the group is deleted, and its new state does not matter
                    self._changed |= {"epoch": value.epoch, "metadata_hash": value.metadata_hash}
            case TargetAssignmentEpochUpdated(_, value):
                fresh = ConsumerGroup("")
                epoch, at = (fresh.assignment_epoch, 0) if value is None else (value.assignment_epoch, value.assignment_timestamp)
                self._changed |= {"assignment_epoch": epoch, "assignment_timestamp": at}
                if self._client != _NO_CLIENT_SIDE:  # what was said about the assignment before is of no use
                    self._changed["client"] = ClientAssignment(self._client.run)
            case ResolvedRegexUpdated(_, regex, value):
                self._put("regexes", regex, value)
            case TopicMetadataRefreshed(_, version):
                self._changed["image_version"] = version
            case RegexResolutionStarted(_, version):
                self._changed |= {"regex_version": version, "resolving": True}
            case RegexResolutionEnded():
                self._changed["resolving"] = False
            case PartitionMetadataDeleted():
                pass
            case AssignorRunStarted() | AssignorRunPrepared() | AssignorRunTimedOut() | AssignorRunEnded():
                self._changed["client"] = _client_side(self._client, event)
            case _:
                assert_never(event)

    @property
    def _client(self) -> ClientAssignment:
        client: ClientAssignment = self._changed.get("client", self._group.client)
        return client

    def _mine(self, name: str) -> Any:
        """One of the group's mappings, as it is now, to write to."""
        if name not in self._changed:
            self._changed[name] = dict(getattr(self._group, name))
        return self._changed[name]

    def _put(self, name: str, key: str, value: object) -> None:
        if value is None:
            self._mine(name).pop(key, None)
        else:
            self._mine(name)[key] = value

    def _target(self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        self._put("target", member_id, None if value is None else {one.topic_id: one.partitions for one in value.topic_partitions})

    def _subscription(self, member_id: str, metadata: ConsumerGroupMemberMetadataValue | None) -> None:
        members = self._mine("members")
        old: ConsumerGroupMember | None = members.get(member_id)
        if old is not None:
            self._count(old.metadata, -1)
            if old.instance_id is not None and self._mine("static_members").get(old.instance_id) == member_id:
                del self._mine("static_members")[old.instance_id]
        if metadata is not None:
            self._count(metadata, 1)
            if metadata.instance_id is not None:
                self._mine("static_members")[metadata.instance_id] = member_id
            members[member_id] = replace(old or ConsumerGroupMember(member_id), metadata=metadata)
        elif old is not None:
            self._release(old)
            del members[member_id]
            if self._client != _NO_CLIENT_SIDE:
                self._changed["client"] = _without(self._client, member_id)

    def _count(self, metadata: ConsumerGroupMemberMetadataValue, by: int) -> None:
        for topic in metadata.subscribed_topic_names:
            self._add("subscribers", topic, by)
        if metadata.subscribed_topic_regex:
            self._add("regex_subscribers", metadata.subscribed_topic_regex, by)
        if metadata.server_assignor:
            self._add("votes", metadata.server_assignor, by)

    def _add(self, name: str, key: str, by: int) -> None:
        counts = self._mine(name)
        counts[key] = counts.get(key, 0) + by
        if not counts[key]:
            del counts[key]

    def _current(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        members = self._mine("members")
        old: ConsumerGroupMember | None = members.get(member_id)
        if old is not None:
            self._release(old)
        if value is not None:
            member = _with_current(old or ConsumerGroupMember(member_id), value)
            self._hold(member)
            members[member_id] = member
        elif old is not None:
            members[member_id] = ConsumerGroupMember(member_id, old.metadata, epoch=LEAVE)

    def _release(self, member: ConsumerGroupMember) -> None:
        for topic_id, partitions in member.held():
            owners = self._owners(topic_id)
            for partition in partitions:
                if owners.get(partition) == member.epoch:  # else another member's record came first, in a log with gaps
                    del owners[partition]
            if not owners:
                del self._mine("owners")[topic_id]
                self._topics.discard(topic_id)

    def _hold(self, member: ConsumerGroupMember) -> None:
        for topic_id, partitions in member.held():
            self._owners(topic_id).update(dict.fromkeys(partitions, member.epoch))

    def _owners(self, topic_id: UUID) -> dict[int, int]:
        by_topic = self._mine("owners")
        if topic_id not in self._topics:
            self._topics.add(topic_id)
            by_topic[topic_id] = dict(by_topic.get(topic_id, {}))
        mine: dict[int, int] = by_topic[topic_id]
        return mine


def _client_side(client: ClientAssignment, event: AssignorRunEvent) -> ClientAssignment:
    match event:
        case AssignorRunStarted(_, run):
            return replace(client, run=run)
        case AssignorRunPrepared(_, group_epoch, spec):
            shown = None if client.run is None else replace(client.run, group_epoch=group_epoch, spec=spec)
            return replace(client, run=shown)
        case AssignorRunTimedOut():
            late = {client.run.member_id} if client.run is not None else set[str]()
            return replace(client, run=None, timed_out=client.timed_out | late)
        case AssignorRunEnded(_, messages):
            by = client.run.member_id if client.run is not None else None
            return replace(client, run=None, computed_by=by, messages=messages)


def _without(client: ClientAssignment, member_id: str) -> ClientAssignment:
    """A member that is gone computes nothing any more."""
    return replace(
        client,
        messages={one: message for one, message in client.messages.items() if one != member_id},
        run=None if client.is_asked(member_id) else client.run,
    )


def _with_current(member: ConsumerGroupMember, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerGroupMember:
    known = value.state in MemberState._value2member_map_
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if known else MemberState.UNKNOWN,
        assigned=partition_epochs_of(value.assigned_partitions, value.member_epoch),
        revoking=partition_epochs_of(value.partitions_pending_revocation, value.member_epoch),
    )


def current_value(member: ConsumerGroupMember) -> ConsumerGroupCurrentMemberAssignmentValue:
    """The record of what a member has."""
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=stored_partitions(member.assigned),
        partitions_pending_revocation=stored_partitions(member.revoking),
    )


def target_value(target: Assignment) -> ConsumerGroupTargetAssignmentMemberValue:
    """The record of what a member shall have."""
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(TargetTopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in target.items())
    )
