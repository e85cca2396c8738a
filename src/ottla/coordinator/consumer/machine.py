"""How a consumer group changes: its events, and the draft on which a handler applies the events it decides on.

Owns the volatile events, every change of a group, and its indexes (the owner of a partition, the number of subscribers of a topic).
``apply`` is a pure function: handlers use it through the draft, to read the outcome of their decision, and ``replay`` applies
events in the same way, both live and on load. Must not know which handler decides on an event. Invariants: the records may be
replayed with gaps: a log from which compaction has dropped superseded records leads to the same group; the events of a draft's
result, applied to the original group, give the draft's group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never
from uuid import UUID

from ottla.assignors import Assignment, GroupSpec
from ottla.coordinator.consumer.client_side import AssignorMessage, AssignorRun, ClientAssignment
from ottla.coordinator.consumer.group import (
    LEAVE_GROUP_EPOCH,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    partition_epochs_of,
    stored_partitions,
)
from ottla.coordinator.decision import GroupEffect, Result
from ottla.coordinator.effects import CancelTimer, ResolveRegexes, SetTimer, TimerKey
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    DurableConsumerEvent,
    GroupEpochUpdated,
    GroupMetadataDeleted,
    MemberSubscriptionUpdated,
    PartitionMetadataDeleted,
    ResolvedRegexUpdated,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
    VolatileEvent,
)
from ottla.protocol.group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberValue,
    TargetTopicPartitions,
)
from ottla.types import Now


@dataclass(frozen=True, slots=True)
class TopicMetadataRefreshed(VolatileEvent):
    """The group has compared its topics with this version of the topic image."""

    image_version: int


@dataclass(frozen=True, slots=True)
class RegexResolutionStarted(VolatileEvent):
    """The group's regular expressions are being resolved."""


@dataclass(frozen=True, slots=True)
class RegexResolutionEnded(VolatileEvent):
    """The resolution of regular expressions has ended."""

    image_version: int | None
    """The version of the topic image against which they were resolved; ``None``: it has failed, or could not be stored."""


@dataclass(frozen=True, slots=True)
class AssignorRunStarted(VolatileEvent):
    """A member was chosen to compute the next target assignment."""

    run: AssignorRun


@dataclass(frozen=True, slots=True)
class AssignorRunPrepared(VolatileEvent):
    """PrepareAssignment has returned the group to that member."""

    group_epoch: int
    spec: GroupSpec


@dataclass(frozen=True, slots=True)
class AssignorRunTimedOut(VolatileEvent):
    """That member did not install an assignment in time."""


@dataclass(frozen=True, slots=True)
class AssignorRunEnded(VolatileEvent):
    """That member has installed the target assignment, or has reported an error: then the ``messages`` are errors."""

    messages: Mapping[str, AssignorMessage]


AssignorRunEvent = AssignorRunStarted | AssignorRunPrepared | AssignorRunTimedOut | AssignorRunEnded
"""The events of client-side assignors."""

ConsumerEvent = DurableConsumerEvent | TopicMetadataRefreshed | RegexResolutionStarted | RegexResolutionEnded | AssignorRunEvent
"""The events of one group of the consumer protocol."""

_NO_CLIENT_ASSIGNMENT = ClientAssignment()


def apply(group: ConsumerGroup, *events: ConsumerEvent) -> ConsumerGroup:
    """Return the group after these events."""
    return ConsumerGroupUpdate(group).after(events)


class ConsumerGroupUpdate:
    """Applies events to a group, and copies each mapping only once, however many events change it."""

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self._changed: dict[str, Any] = {}
        self._topics: set[UUID] = set()
        """The topics whose part of ``owners`` has been copied."""

    def after(self, events: Iterable[ConsumerEvent]) -> ConsumerGroup:
        """Apply events and return the group."""
        for event in events:
            self.apply(event)
        return self.group()

    def group(self) -> ConsumerGroup:
        """Return the group after the events so far; no more events may be applied."""
        return replace(self._group, **self._changed) if self._changed else self._group

    def apply(self, event: ConsumerEvent) -> None:
        """Apply one event."""
        match event:
            case CurrentAssignmentUpdated(_, member_id, current):
                self._update_current(member_id, current)
            case TargetAssignmentUpdated(_, member_id, target):
                self._update_target(member_id, target)
            case MemberSubscriptionUpdated(_, member_id, metadata):
                self._update_subscription(member_id, metadata)
            case GroupEpochUpdated(_, value):
                if value is not None:  # ``None`` deletes the group (``ShardState`` removes it)
                    self._changed |= {"epoch": value.epoch, "metadata_hash": value.metadata_hash}
            case TargetAssignmentEpochUpdated(_, value):
                fresh = ConsumerGroup("")
                epoch, at = (fresh.assignment_epoch, 0) if value is None else (value.assignment_epoch, value.assignment_timestamp)
                self._changed |= {"assignment_epoch": epoch, "assignment_timestamp": at}
                if self._client != _NO_CLIENT_ASSIGNMENT:
                    # The results belong to the previous assignment, and members that timed out may be chosen again.
                    self._changed["client"] = ClientAssignment(self._client.run)
            case ResolvedRegexUpdated(_, regex, value):
                self._put("regexes", regex, value)
            case TopicMetadataRefreshed(_, version):
                self._changed["image_version"] = version
            case RegexResolutionStarted():
                self._changed["resolving"] = True
            case RegexResolutionEnded(_, version):
                self._changed |= {"regex_version": version, "resolving": False}
            case PartitionMetadataDeleted():
                pass
            case AssignorRunStarted() | AssignorRunPrepared() | AssignorRunTimedOut() | AssignorRunEnded():
                self._changed["client"] = _apply_run_event(self._client, event)
            case _:
                assert_never(event)

    @property
    def _client(self) -> ClientAssignment:
        client: ClientAssignment = self._changed.get("client", self._group.client)
        return client

    def _writable(self, name: str) -> Any:
        """Return a writable copy of one of the group's mappings, the same one each time."""
        if name not in self._changed:
            self._changed[name] = dict(getattr(self._group, name))
        return self._changed[name]

    def _put(self, name: str, key: str, value: object) -> None:
        if value is None:
            self._writable(name).pop(key, None)
        else:
            self._writable(name)[key] = value

    def _update_target(self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        self._put(
            "target", member_id, None if value is None else {topic.topic_id: topic.partitions for topic in value.topic_partitions}
        )

    def _update_subscription(self, member_id: str, metadata: ConsumerGroupMemberMetadataValue | None) -> None:
        members = self._writable("members")
        old: ConsumerGroupMember | None = members.get(member_id)
        if old is not None:
            self._count_subscription(old.metadata, -1)
            if old.instance_id is not None and self._writable("static_members").get(old.instance_id) == member_id:
                del self._writable("static_members")[old.instance_id]
        if metadata is not None:
            self._count_subscription(metadata, 1)
            if metadata.instance_id is not None:
                self._writable("static_members")[metadata.instance_id] = member_id
            members[member_id] = replace(old or ConsumerGroupMember(member_id), metadata=metadata)
        elif old is not None:
            self._release(old)
            del members[member_id]
            if self._client != _NO_CLIENT_ASSIGNMENT:
                self._changed["client"] = _without_member(self._client, member_id)

    def _count_subscription(self, metadata: ConsumerGroupMemberMetadataValue, by: int) -> None:
        for topic in metadata.subscribed_topic_names:
            self._add_count("subscribers", topic, by)
        if metadata.subscribed_topic_regex:
            self._add_count("regex_subscribers", metadata.subscribed_topic_regex, by)
        if metadata.server_assignor:
            self._add_count("votes", metadata.server_assignor, by)

    def _add_count(self, name: str, key: str, by: int) -> None:
        counts = self._writable(name)
        counts[key] = counts.get(key, 0) + by
        if not counts[key]:
            del counts[key]

    def _update_current(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        members = self._writable("members")
        old: ConsumerGroupMember | None = members.get(member_id)
        if old is not None:
            self._release(old)
        if value is not None:
            member = _with_current(old or ConsumerGroupMember(member_id), value)
            self._take(member)
            members[member_id] = member
        elif old is not None:
            members[member_id] = ConsumerGroupMember(member_id, old.metadata, epoch=LEAVE_GROUP_EPOCH)

    def _release(self, member: ConsumerGroupMember) -> None:
        for topic_id, partitions in member.owned_partitions():
            owners = self._writable_owners(topic_id)
            for partition in partitions:
                # A log with gaps may lack the record by which this member released the partition:
                # 1. Member a owned the partition in epoch 3 and released it in epoch 4. The second record is gone.
                # 2. Member b got it in epoch 4.
                # 3. The next record of member a replaces that of epoch 3, which must not end b's ownership.
                if owners.get(partition) == member.epoch:
                    del owners[partition]
            if not owners:
                del self._writable("owners")[topic_id]
                self._topics.discard(topic_id)

    def _take(self, member: ConsumerGroupMember) -> None:
        for topic_id, partitions in member.owned_partitions():
            self._writable_owners(topic_id).update(dict.fromkeys(partitions, member.epoch))

    def _writable_owners(self, topic_id: UUID) -> dict[int, int]:
        by_topic = self._writable("owners")
        if topic_id not in self._topics:
            self._topics.add(topic_id)
            by_topic[topic_id] = dict(by_topic.get(topic_id, {}))
        owners: dict[int, int] = by_topic[topic_id]
        return owners


def _apply_run_event(client: ClientAssignment, event: AssignorRunEvent) -> ClientAssignment:
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


def _without_member(client: ClientAssignment, member_id: str) -> ClientAssignment:
    """Drop a removed member's result, and its run if it was the one to compute the assignment."""
    return replace(
        client,
        messages={one: message for one, message in client.messages.items() if one != member_id},
        run=None if client.is_computing(member_id) else client.run,
    )


def _with_current(member: ConsumerGroupMember, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerGroupMember:
    is_known = value.state in MemberState._value2member_map_
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if is_known else MemberState.UNKNOWN,
        assigned=partition_epochs_of(value.assigned_partitions, value.member_epoch),
        revoking=partition_epochs_of(value.partitions_pending_revocation, value.member_epoch),
    )


def current_value(member: ConsumerGroupMember) -> ConsumerGroupCurrentMemberAssignmentValue:
    """Return the record of a member's current assignment."""
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=stored_partitions(member.assigned),
        partitions_pending_revocation=stored_partitions(member.revoking),
    )


def target_value(target: Assignment) -> ConsumerGroupTargetAssignmentMemberValue:
    """Return the record of a member's target assignment."""
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(TargetTopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in target.items())
    )


class ConsumerGroupDraft:
    """A consumer group, the events applied to it at the time ``now``, and effects.

    ``replacing``: the end of a classic group with the same id, which this one replaces.
    """

    def __init__(self, group: ConsumerGroup, now: Now, replacing: Result = Result()) -> None:  # noqa: B008  # a frozen value
        self.group = group
        self.now = now
        self._events: list[ConsumerEvent | GroupMetadataDeleted] = [
            event for event in replacing.events if isinstance(event, GroupMetadataDeleted)
        ]
        self._effects: list[GroupEffect] = list(replacing.effects)

    def apply(self, *events: ConsumerEvent) -> None:
        """Apply events to the draft's group, and add them to the result."""
        self.group = apply(self.group, *events)
        self._events += events

    def set_timer(self, key: TimerKey, delay: int) -> None:
        """Set a timer ``delay`` milliseconds from now."""
        self._effects.append(SetTimer(key, self.now.mono + delay))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel a timer."""
        self._effects.append(CancelTimer(key))

    def resolve_regexes(self, effect: ResolveRegexes) -> None:
        """Resolve regular expressions away from the event loop."""
        self._effects.append(effect)

    def result(self, answer: Any = None) -> Result:
        """Return the events and effects; ``answer`` is the response to the current request."""
        return Result(tuple(self._events), tuple(self._effects), answer)
