"""A member computes the target assignment: it is shown the group (PrepareAssignment), it delivers (InstallAssignment).

Owns the requests of that member and what is accepted from it. Must not know why it was asked, or how it computes. Invariants: what
is installed gives existing partitions to members who subscribed to them, each to one; an assignment is taken whole or not at all.

Source: KIP-848, "Client side mode", which Apache Kafka never shipped. It has no error code for a bad assignment; here that is
INVALID_REQUEST, and for one that was made for another group epoch ILLEGAL_GENERATION, each with a message.
"""

from __future__ import annotations

from typing import Any

from ottla.assignors import Assignment, checked
from ottla.coordinator.api_error import ApiError
from ottla.coordinator.consumer.client_side import AssignorMessage, AssignorRun
from ottla.coordinator.consumer.draft import ConsumerGroupDraft
from ottla.coordinator.consumer.events import AssignorRunEnded, AssignorRunPrepared
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.target import group_spec, write_target
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.ports import GroupContext
from ottla.coordinator.result import Result
from ottla.coordinator.timers import run_timer
from ottla.errors import AssignmentError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.messages import (
    consumer_group_install_assignment_request,
    consumer_group_install_assignment_response,
    consumer_group_prepare_assignment_request,
    consumer_group_prepare_assignment_response as prepared,
)
from ottla.types import Now

_Prepare = consumer_group_prepare_assignment_request.ConsumerGroupPrepareAssignmentRequest
_Install = consumer_group_install_assignment_request.ConsumerGroupInstallAssignmentRequest


def prepare_assignment(
    coordinator: GroupContext, group: ConsumerGroup | None, context: RequestContext, request: _Prepare, now: Now
) -> Result:
    """Show the group to the member that was asked. It may ask again: what it was shown last is what it must install for."""
    try:
        group, run = _run_of(group, request)
    except ApiError as api_error:
        return Result(answer=prepare_refused(api_error.code, api_error.message))
    spec = group_spec(group, coordinator.topics)
    answer = prepared.ConsumerGroupPrepareAssignmentResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        group_epoch=group.epoch,
        assignor_name=run.assignor,
        members=tuple(_shown(group, run, member_id, wants.topics) for member_id, wants in spec.members.items()),
        topics=tuple(
            prepared.TopicMetadata(topic_id=topic_id, topic_name=topic.name, num_partitions=topic.partitions)
            for topic_id, topic in spec.topics.items()
        ),
    )
    return Result((AssignorRunPrepared(group.group_id, group.epoch, spec),), (), answer)


def install_assignment(
    coordinator: GroupContext, group: ConsumerGroup | None, context: RequestContext, request: _Install, now: Now
) -> Result:
    """Take what the member has computed, whole or not at all; refused, it may try again until its time is over."""
    try:
        group, run = _run_of(group, request)
        targets = _targets(run, request)
    except ApiError as api_error:
        return Result(answer=install_refused(api_error.code, api_error.message))
    draft = ConsumerGroupDraft(group, now)
    write_target(draft, {one: target for one, target in targets.items() if one in group.members}, run.group_epoch)
    draft.apply(AssignorRunEnded(group.group_id, _messages(group, run, request)))
    draft.cancel_timer(run_timer(group.group_id, run.member_id))
    return draft.result(install_refused(ErrorCode.none))


def prepare_refused(code: ErrorCode, message: str | None = None) -> Any:
    """There is nothing to show."""
    return prepared.ConsumerGroupPrepareAssignmentResponse(throttle_time=NO_THROTTLE, error_code=code, error_message=message)


def install_refused(code: ErrorCode, message: str | None = None) -> Any:
    """Nothing was installed, unless the code is NONE."""
    return consumer_group_install_assignment_response.ConsumerGroupInstallAssignmentResponse(
        throttle_time=NO_THROTTLE, error_code=code, error_message=message
    )


def _run_of(group: ConsumerGroup | None, request: _Prepare | _Install) -> tuple[ConsumerGroup, AssignorRun]:
    """The group and its run, if this member was asked. Raises ``ApiError``."""
    group_id, member_id = request.group_id, request.member_id
    if group is None:
        raise ApiError(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
    member, run = group.members.get(member_id), group.client.run
    if member is None or run is None or run.member_id != member_id:
        raise ApiError(ErrorCode.unknown_member_id, f"Member {member_id} was not asked for an assignment of group {group_id}.")
    if member.epoch != request.member_epoch:
        epochs = f"is in epoch {member.epoch}, not {request.member_epoch}"
        raise ApiError(ErrorCode.stale_member_epoch, f"Member {member_id} {epochs}.")
    return group, run


def _targets(run: AssignorRun, request: _Install) -> dict[str, Assignment]:
    """The targets of all members; empty if the assignor has failed: then all keep what they have. Raises ``ApiError``."""
    if run.spec is None or request.group_epoch != run.group_epoch:
        shown = "nothing" if run.spec is None else f"epoch {run.group_epoch}"
        raise ApiError(
            ErrorCode.illegal_generation, f"This is an assignment for epoch {request.group_epoch}, but {shown} was shown."
        )
    if request.error:
        return {}
    answer: dict[str, dict[Any, list[int]]] = {}
    for member in request.members:
        if member.member_id in answer:
            raise ApiError(ErrorCode.invalid_request, f"Member {member.member_id} is in the assignment twice.")
        share = answer[member.member_id] = {}
        for topic in member.topic_partitions:
            share.setdefault(topic.topic_id, []).extend(topic.partitions)
    try:
        return checked(run.spec, answer)
    except AssignmentError as error:
        raise ApiError(ErrorCode.invalid_request, str(error)) from error


def _messages(group: ConsumerGroup, run: AssignorRun, request: _Install) -> dict[str, AssignorMessage]:
    """The assignor's error for each member that it was asked about; another run follows for members that have joined since."""
    metadata = {one.member_id: (one.metadata_version, one.metadata) for one in request.members}
    asked = () if run.spec is None else run.spec.members
    return {
        one: AssignorMessage(request.error, *metadata.get(one, (0, b"")), request.error_message, run.assignor)
        for one in asked
        if one in group.members
    }


def _shown(group: ConsumerGroup, run: AssignorRun, member_id: str, topics: frozenset[Any]) -> prepared.Member:
    member = group.members[member_id]
    offer = next((one for one in member.metadata.client_assignors if one.name == run.assignor), None)
    return prepared.Member(
        member_id=member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.metadata.rack_id,
        subscribed_topic_ids=tuple(sorted(topics)),
        reason=offer.reason if offer is not None else 0,
        metadata_version=offer.metadata_version if offer is not None else 0,
        metadata=offer.metadata if offer is not None else b"",
        topic_partitions=tuple(
            prepared.TopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in group.target.get(member_id, {}).items()
        ),
    )
