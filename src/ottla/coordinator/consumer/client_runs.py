"""A member computes the target assignment: PrepareAssignment returns the group, InstallAssignment brings the assignment.

Owns these two requests and the checks of the assignment. Must not know how the member was chosen or how it computes. Invariants: an
installed assignment gives existing partitions to members that subscribe to them, each to one; it is accepted whole or not at all.

Source: KIP-848, "Client side mode", which Apache Kafka never shipped. The KIP has no error code for an invalid assignment; Ottla
answers INVALID_REQUEST, or ILLEGAL_GENERATION for one that was computed for another group epoch, each with a message.
"""

from __future__ import annotations

from typing import Any

from ottla.assignors import Assignment, checked
from ottla.coordinator.consumer.client_side import AssignorMessage, AssignorRun
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.machine import AssignorRunEnded, AssignorRunPrepared, ConsumerGroupDraft
from ottla.coordinator.consumer.target import group_spec, write_target
from ottla.coordinator.decision import GroupContext, Result, run_timer
from ottla.coordinator.effects import ApiError, RequestContext
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
    """Return the group to the member that computes. It may repeat the request: the assignment must be for the last response."""
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
        members=tuple(_member(group, run, member_id, member.topics) for member_id, member in spec.members.items()),
        topics=tuple(
            prepared.TopicMetadata(topic_id=topic_id, topic_name=topic.name, num_partitions=topic.partitions)
            for topic_id, topic in spec.topics.items()
        ),
    )
    return Result((AssignorRunPrepared(group.group_id, group.epoch, spec),), (), answer)


def install_assignment(
    coordinator: GroupContext, group: ConsumerGroup | None, context: RequestContext, request: _Install, now: Now
) -> Result:
    """Install the assignment that the member has computed, whole or not at all.

    After an error the member may send another one until its time is up.
    """
    try:
        group, run = _run_of(group, request)
        targets = _targets(run, request)
    except ApiError as api_error:
        return Result(answer=install_answer(api_error.code, api_error.message))
    draft = ConsumerGroupDraft(group, now)
    # Members may have left since the group was prepared.
    write_target(draft, {member_id: target for member_id, target in targets.items() if member_id in group.members}, run.group_epoch)
    draft.apply(AssignorRunEnded(group.group_id, _messages(group, run, request)))
    draft.cancel_timer(run_timer(group.group_id, run.member_id))
    return draft.result(install_answer(ErrorCode.none))


def prepare_refused(code: ErrorCode, message: str | None = None) -> Any:
    """Return the response with an error to a PrepareAssignment."""
    return prepared.ConsumerGroupPrepareAssignmentResponse(throttle_time=NO_THROTTLE, error_code=code, error_message=message)


def install_answer(code: ErrorCode, message: str | None = None) -> Any:
    """Return the response to an InstallAssignment: success, or an error."""
    return consumer_group_install_assignment_response.ConsumerGroupInstallAssignmentResponse(
        throttle_time=NO_THROTTLE, error_code=code, error_message=message
    )


def _run_of(group: ConsumerGroup | None, request: _Prepare | _Install) -> tuple[ConsumerGroup, AssignorRun]:
    """Return the group and its run. Raises ``ApiError`` if the group did not choose this member to compute."""
    group_id, member_id = request.group_id, request.member_id
    if group is None:
        raise ApiError(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
    member, run = group.members.get(member_id), group.client.run
    if member is None or run is None or run.member_id != member_id:
        raise ApiError(ErrorCode.unknown_member_id, f"Member {member_id} was not chosen to assign for group {group_id}.")
    if member.epoch != request.member_epoch:
        epochs = f"is in epoch {member.epoch}, not {request.member_epoch}"
        raise ApiError(ErrorCode.stale_member_epoch, f"Member {member_id} {epochs}.")
    return group, run


def _targets(run: AssignorRun, request: _Install) -> dict[str, Assignment]:
    """Return the targets of all members; none if the assignor failed: then all members keep theirs. Raises ``ApiError``."""
    if run.spec is None or request.group_epoch != run.group_epoch:
        prepared_for = "no epoch" if run.spec is None else f"epoch {run.group_epoch}"
        raise ApiError(
            ErrorCode.illegal_generation,
            f"The assignment is for group epoch {request.group_epoch}, but {prepared_for} was prepared; prepare it again.",
        )
    if request.error:
        return {}
    assignment: dict[str, dict[Any, list[int]]] = {}
    for member in request.members:
        if member.member_id in assignment:
            raise ApiError(ErrorCode.invalid_request, f"Member {member.member_id} is in the assignment twice.")
        partitions = assignment[member.member_id] = {}
        for topic in member.topic_partitions:
            partitions.setdefault(topic.topic_id, []).extend(topic.partitions)
    try:
        return checked(run.spec, assignment)
    except AssignmentError as error:
        raise ApiError(ErrorCode.invalid_request, str(error)) from error


def _messages(group: ConsumerGroup, run: AssignorRun, request: _Install) -> dict[str, AssignorMessage]:
    """Return the assignor's result for each member that it assigned for. For members that have joined since, another run
    follows.
    """
    metadata = {member.member_id: (member.metadata_version, member.metadata) for member in request.members}
    members = () if run.spec is None else run.spec.members
    return {
        member_id: AssignorMessage(request.error, *metadata.get(member_id, (0, b"")), request.error_message, run.assignor)
        for member_id in members
        if member_id in group.members
    }


def _member(group: ConsumerGroup, run: AssignorRun, member_id: str, topics: frozenset[Any]) -> prepared.Member:
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
