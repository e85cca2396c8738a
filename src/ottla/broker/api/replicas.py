"""ElectLeaders, the reassignment of partitions, and log directories, for partitions with one replica.

Owns the answers of brokers with one log directory each. Invariant: none of these requests changes anything.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.catalog import check_partition
from ottla.broker.cluster import NO_LEADER
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.coordinator.effects import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    alter_partition_reassignments_request,
    alter_partition_reassignments_response,
    alter_replica_log_dirs_request,
    alter_replica_log_dirs_response,
    describe_log_dirs_request,
    describe_log_dirs_response,
    elect_leaders_request,
    elect_leaders_response,
    list_partition_reassignments_request,
    list_partition_reassignments_response,
)
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


class ElectionType(enum.IntEnum):
    """The election type, by the protocol's numbers: the first of the replicas, or any that is left (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@serves(Api.ELECT_LEADERS)
def elect_leaders(
    state: BrokerState, context: RequestContext, request: elect_leaders_request.ElectLeadersRequest, now: Now
) -> list[BrokerEffect]:
    """Reply that no partition needs an election; for all partitions, list only the topics."""
    known = request.election_type in list(ElectionType)
    if request.topic_partitions is None:
        asked: list[tuple[str, tuple[int, ...]]] = [(topic.name, ()) for topic in state.catalog.topics] if known else []
    else:
        asked = [(one.topic, one.partitions) for one in request.topic_partitions]
    results = tuple(
        elect_leaders_response.ReplicaElectionResult(
            topic=topic, partition_result=tuple(_result(state, request.election_type, topic, partition) for partition in partitions)
        )
        for topic, partitions in asked
    )
    response = elect_leaders_response.ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if known else ErrorCode.invalid_request,
        replica_election_results=results,
    )
    return [Reply(context.ticket, response)]


def _result(state: BrokerState, kind: int, topic: str, partition: int) -> elect_leaders_response.PartitionResult:
    try:
        if kind not in list(ElectionType):
            raise ApiError(ErrorCode.invalid_request, f"There is no election type {kind}.")
        found = state.catalog.topic(topic)
        check_partition(found, partition)
        if state.catalog.cluster.leader(found, partition) == NO_LEADER:
            is_preferred = kind == ElectionType.PREFERRED
            code = ErrorCode.preferred_leader_not_available if is_preferred else ErrorCode.eligible_leaders_not_available
            raise ApiError(code, f"Broker {state.catalog.cluster.replica(found, partition)}, its one replica, is not registered.")
        raise ApiError(ErrorCode.election_not_needed, "The partition is led by its one replica.")
    except ApiError as api_error:
        return elect_leaders_response.PartitionResult(
            partition_id=partition, error_code=api_error.code, error_message=api_error.message
        )


@serves(Api.ALTER_PARTITION_REASSIGNMENTS)
def alter_partition_reassignments(
    state: BrokerState,
    context: RequestContext,
    request: alter_partition_reassignments_request.AlterPartitionReassignmentsRequest,
    now: Now,
) -> list[BrokerEffect]:
    """Validate each reassignment; the only valid one is already in place."""
    responses = tuple(
        alter_partition_reassignments_response.ReassignableTopicResponse(
            name=topic.name, partitions=tuple(_answered(state, topic.name, wanted) for wanted in topic.partitions)
        )
        for topic in request.topics
    )
    response = alter_partition_reassignments_response.AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.none,
        error_message=None,
        responses=responses,
    )
    return [Reply(context.ticket, response)]


def _answered(
    state: BrokerState, topic: str, wanted: alter_partition_reassignments_request.ReassignablePartition
) -> alter_partition_reassignments_response.ReassignablePartitionResponse:
    code, message = ErrorCode.none, None
    try:
        found = state.catalog.topic(topic)
        check_partition(found, wanted.partition_index)
        _check_replicas(state.catalog.cluster.replica(found, wanted.partition_index), wanted.replicas)
    except ApiError as api_error:
        code, message = api_error.code, api_error.message
    return alter_partition_reassignments_response.ReassignablePartitionResponse(
        partition_index=wanted.partition_index, error_code=code, error_message=message
    )


def _check_replicas(replica: int, replicas: tuple[int, ...] | None) -> None:
    """Raise ``ApiError`` unless the one replica stays where it is; ``None`` would cancel a reassignment, and none is in
    progress."""
    if replicas is None:
        raise ApiError(ErrorCode.no_reassignment_in_progress, "No reassignment of the partition is in progress.")
    if replicas != (replica,):
        message = f"The partition must have one replica, on broker {replica}, which has it."
        raise ApiError(ErrorCode.invalid_replica_assignment, message)


@serves(Api.LIST_PARTITION_REASSIGNMENTS)
def list_partition_reassignments(
    state: BrokerState,
    context: RequestContext,
    request: list_partition_reassignments_request.ListPartitionReassignmentsRequest,
    now: Now,
) -> list[BrokerEffect]:
    """Return an empty list: no reassignment is in progress."""
    response = list_partition_reassignments_response.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=()
    )
    return [Reply(context.ticket, response)]


@serves(Api.ALTER_REPLICA_LOG_DIRS)
def alter_replica_log_dirs(
    state: BrokerState, context: RequestContext, request: alter_replica_log_dirs_request.AlterReplicaLogDirsRequest, now: Now
) -> list[BrokerEffect]:
    """Accept only the one directory; if a partition is named twice, the last directory counts."""
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for partition in topic.partitions:
                wanted.setdefault(topic.name, {})[partition] = directory.path
    results = tuple(
        alter_replica_log_dirs_response.AlterReplicaLogDirTopicResult(
            topic_name=name,
            partitions=tuple(
                alter_replica_log_dirs_response.AlterReplicaLogDirPartitionResult(
                    partition_index=partition,
                    error_code=_outcome(state, name, partition) if path == state.catalog.log_dir else ErrorCode.log_dir_not_found,
                )
                for partition, path in paths.items()
            ),
        )
        for name, paths in wanted.items()
    )
    response = alter_replica_log_dirs_response.AlterReplicaLogDirsResponse(throttle_time=NO_THROTTLE, results=results)
    return [Reply(context.ticket, response)]


def _outcome(state: BrokerState, topic: str, partition: int) -> ErrorCode:
    try:
        state.catalog.log(topic, partition)
    except ApiError as api_error:
        return api_error.code
    return ErrorCode.none


@serves(Api.DESCRIBE_LOG_DIRS)
def describe_log_dirs(
    state: BrokerState, context: RequestContext, request: describe_log_dirs_request.DescribeLogDirsRequest, now: Now
) -> list[BrokerEffect]:
    """Describe the requested partitions, or all; those that do not exist are left out."""
    if request.topics is None:
        wanted = {topic.name: list(topic.partitions) for topic in state.catalog.topics}
    else:
        wanted = {one.topic: list(one.partitions) for one in request.topics}
    topics = []
    for name, numbers in wanted.items():
        topic = state.catalog.topics.get(name)
        if topic is not None:
            partitions = tuple(
                describe_log_dirs_response.DescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=state.catalog.logs.get(topic, number).size,
                    offset_lag=0,
                    is_future_key=False,
                )
                for number in numbers
                if number in topic.partitions and state.catalog.cluster.is_mine(topic, number)
            )
            topics.append(describe_log_dirs_response.DescribeLogDirsTopic(name=name, partitions=partitions))
    try:
        disk = state.catalog.disk_usage()
    except OSError:
        result = describe_log_dirs_response.DescribeLogDirsResult(
            error_code=ErrorCode.kafka_storage_error, log_dir=state.catalog.log_dir, topics=()
        )
    else:
        result = describe_log_dirs_response.DescribeLogDirsResult(
            error_code=ErrorCode.none,
            log_dir=state.catalog.log_dir,
            topics=tuple(topics),
            total_bytes=disk.total,
            usable_bytes=disk.usable,
        )
    response = describe_log_dirs_response.DescribeLogDirsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=(result,)
    )
    return [Reply(context.ticket, response)]
