"""The APIs that the client calls, each with the types of its request and its response.

Owns that pairing, by which mypy checks a request and the handler of its response. Must not know versions, sockets or cores.
Invariant: the types are the neutral classes that ``codec`` encodes and decodes for the API (a test compares them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    add_offsets_to_txn_request,
    add_offsets_to_txn_response,
    add_partitions_to_txn_request,
    add_partitions_to_txn_response,
    api_versions_request,
    api_versions_response,
    consult_request,
    consult_response,
    consumer_group_describe_request,
    consumer_group_describe_response,
    consumer_group_heartbeat_request,
    consumer_group_heartbeat_response,
    consumer_group_install_assignment_request,
    consumer_group_install_assignment_response,
    consumer_group_prepare_assignment_request,
    consumer_group_prepare_assignment_response,
    create_partitions_request,
    create_partitions_response,
    create_topics_request,
    create_topics_response,
    delete_groups_request,
    delete_groups_response,
    delete_records_request,
    delete_records_response,
    delete_topics_request,
    delete_topics_response,
    describe_configs_request,
    describe_configs_response,
    describe_groups_request,
    describe_groups_response,
    describe_log_dirs_request,
    describe_log_dirs_response,
    describe_producers_request,
    describe_producers_response,
    describe_transactions_request,
    describe_transactions_response,
    end_txn_request,
    end_txn_response,
    fetch_request,
    fetch_response,
    find_coordinator_request,
    find_coordinator_response,
    heartbeat_request,
    heartbeat_response,
    incremental_alter_configs_request,
    incremental_alter_configs_response,
    init_producer_id_request,
    init_producer_id_response,
    join_group_request,
    join_group_response,
    leave_group_request,
    leave_group_response,
    leave_request,
    leave_response,
    list_groups_request,
    list_groups_response,
    list_offsets_request,
    list_offsets_response,
    list_transactions_request,
    list_transactions_response,
    metadata_request,
    metadata_response,
    offset_commit_request,
    offset_commit_response,
    offset_fetch_request,
    offset_fetch_response,
    offset_for_leader_epoch_request,
    offset_for_leader_epoch_response,
    produce_request,
    produce_response,
    register_request,
    register_response,
    sync_group_request,
    sync_group_response,
    txn_offset_commit_request,
    txn_offset_commit_response,
    write_txn_markers_request,
    write_txn_markers_response,
)

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class Rpc(Generic[RequestT, ResponseT]):
    """An API whose request is a ``RequestT`` and whose response is a ``ResponseT``."""

    api: Api


API_VERSIONS: Rpc[api_versions_request.ApiVersionsRequest, api_versions_response.ApiVersionsResponse] = Rpc(Api.API_VERSIONS)
FETCH: Rpc[fetch_request.FetchRequest, fetch_response.FetchResponse] = Rpc(Api.FETCH)
LIST_OFFSETS: Rpc[list_offsets_request.ListOffsetsRequest, list_offsets_response.ListOffsetsResponse] = Rpc(Api.LIST_OFFSETS)
OFFSET_FOR_LEADER_EPOCH: Rpc[
    offset_for_leader_epoch_request.OffsetForLeaderEpochRequest,
    offset_for_leader_epoch_response.OffsetForLeaderEpochResponse,
] = Rpc(Api.OFFSET_FOR_LEADER_EPOCH)
METADATA: Rpc[metadata_request.MetadataRequest, metadata_response.MetadataResponse] = Rpc(Api.METADATA)
FIND_COORDINATOR: Rpc[
    find_coordinator_request.FindCoordinatorRequest,
    find_coordinator_response.FindCoordinatorResponse,
] = Rpc(Api.FIND_COORDINATOR)
OFFSET_COMMIT: Rpc[offset_commit_request.OffsetCommitRequest, offset_commit_response.OffsetCommitResponse] = Rpc(Api.OFFSET_COMMIT)
OFFSET_FETCH: Rpc[offset_fetch_request.OffsetFetchRequest, offset_fetch_response.OffsetFetchResponse] = Rpc(Api.OFFSET_FETCH)
JOIN_GROUP: Rpc[join_group_request.JoinGroupRequest, join_group_response.JoinGroupResponse] = Rpc(Api.JOIN_GROUP)
SYNC_GROUP: Rpc[sync_group_request.SyncGroupRequest, sync_group_response.SyncGroupResponse] = Rpc(Api.SYNC_GROUP)
HEARTBEAT: Rpc[heartbeat_request.HeartbeatRequest, heartbeat_response.HeartbeatResponse] = Rpc(Api.HEARTBEAT)
LEAVE_GROUP: Rpc[leave_group_request.LeaveGroupRequest, leave_group_response.LeaveGroupResponse] = Rpc(Api.LEAVE_GROUP)
CONSUMER_GROUP_HEARTBEAT: Rpc[
    consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest,
    consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse,
] = Rpc(Api.CONSUMER_GROUP_HEARTBEAT)
CONSUMER_GROUP_PREPARE_ASSIGNMENT: Rpc[
    consumer_group_prepare_assignment_request.ConsumerGroupPrepareAssignmentRequest,
    consumer_group_prepare_assignment_response.ConsumerGroupPrepareAssignmentResponse,
] = Rpc(Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT)
CONSUMER_GROUP_INSTALL_ASSIGNMENT: Rpc[
    consumer_group_install_assignment_request.ConsumerGroupInstallAssignmentRequest,
    consumer_group_install_assignment_response.ConsumerGroupInstallAssignmentResponse,
] = Rpc(Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT)
DESCRIBE_GROUPS: Rpc[
    describe_groups_request.DescribeGroupsRequest,
    describe_groups_response.DescribeGroupsResponse,
] = Rpc(Api.DESCRIBE_GROUPS)
CONSUMER_GROUP_DESCRIBE: Rpc[
    consumer_group_describe_request.ConsumerGroupDescribeRequest,
    consumer_group_describe_response.ConsumerGroupDescribeResponse,
] = Rpc(Api.CONSUMER_GROUP_DESCRIBE)
LIST_GROUPS: Rpc[list_groups_request.ListGroupsRequest, list_groups_response.ListGroupsResponse] = Rpc(Api.LIST_GROUPS)
DELETE_GROUPS: Rpc[delete_groups_request.DeleteGroupsRequest, delete_groups_response.DeleteGroupsResponse] = Rpc(Api.DELETE_GROUPS)
CREATE_TOPICS: Rpc[create_topics_request.CreateTopicsRequest, create_topics_response.CreateTopicsResponse] = Rpc(Api.CREATE_TOPICS)
DELETE_TOPICS: Rpc[delete_topics_request.DeleteTopicsRequest, delete_topics_response.DeleteTopicsResponse] = Rpc(Api.DELETE_TOPICS)
CREATE_PARTITIONS: Rpc[
    create_partitions_request.CreatePartitionsRequest,
    create_partitions_response.CreatePartitionsResponse,
] = Rpc(Api.CREATE_PARTITIONS)
DELETE_RECORDS: Rpc[
    delete_records_request.DeleteRecordsRequest,
    delete_records_response.DeleteRecordsResponse,
] = Rpc(Api.DELETE_RECORDS)
DESCRIBE_CONFIGS: Rpc[
    describe_configs_request.DescribeConfigsRequest,
    describe_configs_response.DescribeConfigsResponse,
] = Rpc(Api.DESCRIBE_CONFIGS)
INCREMENTAL_ALTER_CONFIGS: Rpc[
    incremental_alter_configs_request.IncrementalAlterConfigsRequest,
    incremental_alter_configs_response.IncrementalAlterConfigsResponse,
] = Rpc(Api.INCREMENTAL_ALTER_CONFIGS)
DESCRIBE_LOG_DIRS: Rpc[
    describe_log_dirs_request.DescribeLogDirsRequest,
    describe_log_dirs_response.DescribeLogDirsResponse,
] = Rpc(Api.DESCRIBE_LOG_DIRS)
PRODUCE: Rpc[produce_request.ProduceRequest, produce_response.ProduceResponse] = Rpc(Api.PRODUCE)
ADD_OFFSETS_TO_TXN: Rpc[add_offsets_to_txn_request.AddOffsetsToTxnRequest, add_offsets_to_txn_response.AddOffsetsToTxnResponse] = (
    Rpc(Api.ADD_OFFSETS_TO_TXN)
)
ADD_PARTITIONS_TO_TXN: Rpc[
    add_partitions_to_txn_request.AddPartitionsToTxnRequest, add_partitions_to_txn_response.AddPartitionsToTxnResponse
] = Rpc(Api.ADD_PARTITIONS_TO_TXN)
END_TXN: Rpc[end_txn_request.EndTxnRequest, end_txn_response.EndTxnResponse] = Rpc(Api.END_TXN)
TXN_OFFSET_COMMIT: Rpc[txn_offset_commit_request.TxnOffsetCommitRequest, txn_offset_commit_response.TxnOffsetCommitResponse] = Rpc(
    Api.TXN_OFFSET_COMMIT
)
INIT_PRODUCER_ID: Rpc[
    init_producer_id_request.InitProducerIdRequest,
    init_producer_id_response.InitProducerIdResponse,
] = Rpc(Api.INIT_PRODUCER_ID)
DESCRIBE_TRANSACTIONS: Rpc[
    describe_transactions_request.DescribeTransactionsRequest,
    describe_transactions_response.DescribeTransactionsResponse,
] = Rpc(Api.DESCRIBE_TRANSACTIONS)
LIST_TRANSACTIONS: Rpc[
    list_transactions_request.ListTransactionsRequest,
    list_transactions_response.ListTransactionsResponse,
] = Rpc(Api.LIST_TRANSACTIONS)
DESCRIBE_PRODUCERS: Rpc[
    describe_producers_request.DescribeProducersRequest,
    describe_producers_response.DescribeProducersResponse,
] = Rpc(Api.DESCRIBE_PRODUCERS)
WRITE_TXN_MARKERS: Rpc[
    write_txn_markers_request.WriteTxnMarkersRequest,
    write_txn_markers_response.WriteTxnMarkersResponse,
] = Rpc(Api.WRITE_TXN_MARKERS)
CONSULT: Rpc[consult_request.ConsultRequest, consult_response.ConsultResponse] = Rpc(Api.CONSULT)
REGISTER: Rpc[register_request.RegisterRequest, register_response.RegisterResponse] = Rpc(Api.REGISTER)
LEAVE: Rpc[leave_request.LeaveRequest, leave_response.LeaveResponse] = Rpc(Api.LEAVE)
