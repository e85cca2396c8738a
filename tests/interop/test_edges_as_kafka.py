"""The same edge cases to Apache Kafka and to Ottla's broker, byte for byte: both respond with the same error codes.

Known differences are in ``DIFFERENT``, each with the reason. Brokers choose topic ids themselves, so topics are named here.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from ottla import Admin, Broker
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import decode_response
from ottla.protocol.messages import (
    alter_partition_reassignments_request as reassign,
    alter_replica_log_dirs_request as log_dirs,
    consumer_group_heartbeat_request as consumer_heartbeat,
    create_partitions_request as create_partitions,
    create_topics_request as create,
    delete_groups_request as delete_groups,
    delete_records_request as delete_records,
    delete_topics_request as delete_topics,
    describe_configs_request as configs,
    describe_groups_request as describe,
    describe_producers_request as producers,
    describe_quorum_request as quorum,
    describe_topic_partitions_request as described,
    elect_leaders_request as elect,
    fetch_request as fetch,
    find_coordinator_request as find,
    heartbeat_request as heartbeat,
    incremental_alter_configs_request as alter,
    init_producer_id_request as init,
    join_group_request as join,
    leave_group_request as leave,
    list_groups_request as list_groups,
    list_offsets_request as list_offsets,
    metadata_request as metadata,
    offset_commit_request as commit,
    offset_fetch_request as offset_fetch,
    offset_for_leader_epoch_request as epochs,
    produce_request as produce,
    sync_group_request as sync,
)
from ottla.records import NewRecord, encode_batch
from tests.edge_case_requests import NOT_UTF8, frame
from tests.error_codes import codes
from tests.raw_client import RawClient

TOPIC, STRICT = "edges", "strict"
SOON, NEVER = timedelta(seconds=10), timedelta(0)
BATCH = encode_batch([NewRecord(b"k", b"v", timestamp=time.time_ns() // 1_000_000)])
LIMIT = 2**31 - 1
NOWHERE = uuid.UUID(int=77)


class Edge(NamedTuple):
    """One request."""

    api: Api
    version: int
    message: Any


def new_topic(
    name: str = "new", count: int = 1, factor: int = 1, placed: Any = (), **settings: str | None
) -> create.CreatableTopic:
    return create.CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=factor,
        assignments=tuple(create.CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in placed),
        configs=tuple(create.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()),
    )


def creating(*topics: create.CreatableTopic) -> Edge:
    return Edge(Api.CREATE_TOPICS, 5, create.CreateTopicsRequest(topics=topics, timeout=SOON, validate_only=True))


def joining(group: str = "g", version: int = 3, **fields: Any) -> Edge:
    values = {"session_timeout": SOON, "rebalance_timeout": SOON, "member_id": "", "protocol_type": "consumer", **fields}
    protocols = values.pop("protocols", ("range",))
    named = tuple(join.JoinGroupRequestProtocol(name=name, metadata=b"") for name in protocols)
    return Edge(Api.JOIN_GROUP, version, join.JoinGroupRequest(group_id=group, protocols=named, **values))


def committing(group: str, *partitions: tuple[str, int, int], generation: int = -1, member: str = "", note: str = "") -> Edge:
    topics = tuple(
        commit.OffsetCommitRequestTopic(
            name=name,
            partitions=(
                commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=note),
            ),
        )
        for name, index, offset in partitions
    )
    message = commit.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics)
    return Edge(Api.OFFSET_COMMIT, 8, message)


def fetching(
    *partitions: tuple[str, int, int],
    version: int = 12,
    session: tuple[int, int] = (0, -1),
    epoch: int = -1,
    isolation: int = 0,
) -> Edge:
    topics = tuple(
        fetch.FetchTopic(
            topic=name,
            partitions=(
                fetch.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1000, current_leader_epoch=epoch),
            ),
        )
        for name, index, offset in partitions
    )
    message = fetch.FetchRequest(
        max_wait=NEVER,
        min_bytes=0,
        max_bytes=LIMIT,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=(),
    )
    return Edge(Api.FETCH, version, message)


def listing(*partitions: tuple[str, int, int], epoch: int = -1, isolation: int = 0) -> Edge:
    topics = tuple(
        list_offsets.ListOffsetsTopic(
            name=name,
            partitions=(list_offsets.ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp),),
        )
        for name, index, timestamp in partitions
    )
    return Edge(
        Api.LIST_OFFSETS, 7, list_offsets.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics, timeout=SOON)
    )


def producing(name: str, index: int, records: bytes, acks: int = 1) -> Edge:
    data = produce.PartitionProduceData(index=index, records=records)
    topics = (produce.TopicProduceData(name=name, partition_data=(data,)),)
    return Edge(Api.PRODUCE, 9, produce.ProduceRequest(acks=acks, timeout=SOON, topic_data=topics))


def altering(name: str, kind: int, operation: int, setting: str, value: str | None) -> Edge:
    config = alter.AlterableConfig(name=setting, config_operation=operation, value=value)
    resource = alter.AlterConfigsResource(resource_type=kind, resource_name=name, configs=(config,))
    request = alter.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=True)
    return Edge(Api.INCREMENTAL_ALTER_CONFIGS, 1, request)


def describing(*resources: tuple[int, str]) -> Edge:
    asked = tuple(
        configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None) for kind, name in resources
    )
    return Edge(Api.DESCRIBE_CONFIGS, 4, configs.DescribeConfigsRequest(resources=asked, include_synonyms=False))


def deleting(name: str, index: int, offset: int) -> Edge:
    parts = (delete_records.DeleteRecordsPartition(partition_index=index, offset=offset),)
    topics = (delete_records.DeleteRecordsTopic(name=name, partitions=parts),)
    return Edge(Api.DELETE_RECORDS, 2, delete_records.DeleteRecordsRequest(topics=topics, timeout=SOON))


def growing(name: str, count: int, *places: tuple[int, ...]) -> Edge:
    placed = tuple(create_partitions.CreatePartitionsAssignment(broker_ids=ids) for ids in places) or None
    topic = create_partitions.CreatePartitionsTopic(name=name, count=count, assignments=placed)
    return Edge(
        Api.CREATE_PARTITIONS, 3, create_partitions.CreatePartitionsRequest(topics=(topic,), timeout=SOON, validate_only=True)
    )


def epoch_of(name: str, index: int, current: int, epoch: int) -> Edge:
    part = epochs.OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
    topics = (epochs.OffsetForLeaderTopic(topic=name, partitions=(part,)),)
    return Edge(Api.OFFSET_FOR_LEADER_EPOCH, 4, epochs.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics))


def finding(kind: int, *keys: str) -> Edge:
    return Edge(Api.FIND_COORDINATOR, 4, find.FindCoordinatorRequest(key_type=kind, coordinator_keys=keys))


def beating(group: str, generation: int, member: str) -> Edge:
    return Edge(Api.HEARTBEAT, 4, heartbeat.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member))


def syncing(group: str, generation: int, member: str, version: int = 5, kind: str | None = None) -> Edge:
    message = sync.SyncGroupRequest(
        group_id=group, generation_id=generation, member_id=member, protocol_type=kind, protocol_name=kind, assignments=()
    )
    return Edge(Api.SYNC_GROUP, version, message)


def leaving(group: str, *members: str) -> Edge:
    gone = tuple(leave.MemberIdentity(member_id=member, group_instance_id=None, reason=None) for member in members)
    return Edge(Api.LEAVE_GROUP, 5, leave.LeaveGroupRequest(group_id=group, members=gone))


def offsets_of(group: str, *topics: tuple[str, tuple[int, ...]]) -> Edge:
    wanted = tuple(offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics)
    asked = offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=wanted)
    return Edge(Api.OFFSET_FETCH, 8, offset_fetch.OffsetFetchRequest(groups=(asked,), require_stable=False))


def about(*names: str | uuid.UUID | None, version: int = 12) -> Edge:
    topics = tuple(
        metadata.MetadataRequestTopic(topic_id=name, name=None)
        if isinstance(name, uuid.UUID)
        else metadata.MetadataRequestTopic(topic_id=None, name=name)
        for name in names
    )
    message = metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    return Edge(Api.METADATA, version, message)


def initialising(producer: int = -1, epoch: int = -1, name: str | None = None) -> Edge:
    message = init.InitProducerIdRequest(
        transactional_id=name, transaction_timeout=SOON, producer_id=producer, producer_epoch=epoch
    )
    return Edge(Api.INIT_PRODUCER_ID, 4, message)


def dropping(*names: str) -> Edge:
    topics = tuple(delete_topics.DeleteTopicState(name=name, topic_id=None) for name in names)
    return Edge(Api.DELETE_TOPICS, 6, delete_topics.DeleteTopicsRequest(topics=topics, timeout=SOON))


def partitions_of(*names: str, limit: int = 100, cursor: tuple[str, int] | None = None) -> Edge:
    start = described.Cursor(topic_name=cursor[0], partition_index=cursor[1]) if cursor is not None else None
    topics = tuple(described.TopicRequest(name=name) for name in names)
    message = described.DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=start)
    return Edge(Api.DESCRIBE_TOPIC_PARTITIONS, 0, message)


def producers_of(name: str, *indexes: int) -> Edge:
    topics = (producers.TopicRequest(name=name, partition_indexes=indexes),)
    return Edge(Api.DESCRIBE_PRODUCERS, 0, producers.DescribeProducersRequest(topics=topics))


def reassigning(name: str, index: int, replicas: tuple[int, ...] | None) -> Edge:
    part = reassign.ReassignablePartition(partition_index=index, replicas=replicas)
    topics = (reassign.ReassignableTopic(name=name, partitions=(part,)),)
    return Edge(Api.ALTER_PARTITION_REASSIGNMENTS, 1, reassign.AlterPartitionReassignmentsRequest(timeout=SOON, topics=topics))


def moving(path: str, name: str, index: int) -> Edge:
    topics = (log_dirs.AlterReplicaLogDirTopic(name=name, partitions=(index,)),)
    dirs = (log_dirs.AlterReplicaLogDir(path=path, topics=topics),)
    return Edge(Api.ALTER_REPLICA_LOG_DIRS, 2, log_dirs.AlterReplicaLogDirsRequest(dirs=dirs))


def electing(kind: int, *asked: tuple[str, tuple[int, ...]]) -> Edge:
    topics = tuple(elect.TopicPartitions(topic=name, partitions=indexes) for name, indexes in asked)
    return Edge(Api.ELECT_LEADERS, 2, elect.ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout=SOON))


def quorum_of(*asked: tuple[str, tuple[int, ...]]) -> Edge:
    topics = tuple(
        quorum.TopicData(topic_name=name, partitions=tuple(quorum.PartitionData(partition_index=index) for index in indexes))
        for name, indexes in asked
    )
    return Edge(Api.DESCRIBE_QUORUM, 2, quorum.DescribeQuorumRequest(topics=topics))


def asking_for(*groups: str) -> describe.DescribeGroupsRequest:
    return describe.DescribeGroupsRequest(groups=groups, include_authorized_operations=False)


def lasting(edge: Edge, field: str, milliseconds: int) -> Edge:
    """A request with a duration in it."""
    return edge._replace(message=dataclasses.replace(edge.message, **{field: timedelta(milliseconds=milliseconds)}))


def keeping(milliseconds: int, version: int) -> Edge:
    """A commit that says how long it is to be kept."""
    edge = committing("kept", (TOPIC, 0, 1))
    return Edge(Api.OFFSET_COMMIT, version, dataclasses.replace(edge.message, retention_time_ms=milliseconds))


def entering(group: str, rebalance_timeout: int) -> Edge:
    message = consumer_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout=timedelta(milliseconds=rebalance_timeout),
        subscribed_topic_names=(TOPIC,),
        topic_partitions=(),
    )
    return Edge(Api.CONSUMER_GROUP_HEARTBEAT, 1, message)


_EXTREMES = {"nothing": 0, "a millisecond below none": -1, "the smallest number": -(2**31), "the largest number": LIMIT}
_LONG_EXTREMES = {"0": 0, "-2": -2, "the smallest number": -(2**63), "the largest number": 2**63 - 1}
_LASTING = {
    "create": (creating(new_topic()), "timeout"),
    "delete": (dropping("nowhere"), "timeout"),
    "grow": (growing(TOPIC, 3), "timeout"),
    "delete records": (deleting(TOPIC, 0, 0), "timeout"),
    "produce": (producing("with_dot", 0, BATCH, acks=-1), "timeout"),
    "fetch": (fetching((TOPIC, 0, 0)), "max_wait"),
    "producer": (initialising(name="id"), "transaction_timeout"),
    "join": (joining(), "session_timeout"),
}
DURATIONS = {
    **{
        f"{name}: {field} of {which}": lasting(edge, field, number)
        for name, (edge, field) in _LASTING.items()
        for which, number in _EXTREMES.items()
    },
    **{f"commit: to be kept for {which}": keeping(number, 2) for which, number in _LONG_EXTREMES.items()},
    "commit: to be kept for the largest number, version 4": keeping(2**63 - 1, 4),
    "join: a rebalance of the smallest number": lasting(joining("hasty"), "rebalance_timeout", -(2**31)),
    **{f"consumer group: a rebalance of {number}": entering(f"c{number}", number) for number in (-1, -2, 0, -(2**31), LIMIT)},
}
"""Requests with durations that no one means."""

EDGES: dict[str, Edge] = {
    "create: no name": creating(new_topic("")),
    "create: a name with blanks": creating(new_topic("a b", 0, 0)),
    "create: a long name": creating(new_topic("x" * 250)),
    "create: a name of dots": creating(new_topic("..")),
    "create: a topic that is there": creating(new_topic(TOPIC, 0, -5, bad=None)),
    "create: a topic that is nearly there": creating(new_topic("with.dot")),
    "create: the same twice": creating(new_topic(), new_topic(), new_topic("other")),
    "create: no partitions": creating(new_topic(count=0)),
    "create: fewer partitions than none": creating(new_topic(count=-2)),
    "create: two replicas": creating(new_topic(factor=2)),
    "create: no replicas": creating(new_topic(factor=0)),
    "create: placed and counted": creating(new_topic(count=1, factor=1, placed=((0, (1,)),))),
    "create: placed with a gap": creating(new_topic(count=-1, factor=-1, placed=((1, (1,)),))),
    "create: placed nowhere": creating(new_topic(count=-1, factor=-1, placed=((0, ()),))),
    "create: placed on another broker": creating(new_topic(count=-1, factor=-1, placed=((0, (77,)),))),
    "create: placed twice": creating(new_topic(count=-1, factor=-1, placed=((0, (1, 1)),))),
    "create: a setting without a value": creating(new_topic(count=0, cleanup_policy=None)),
    "create: a setting with a bad value": creating(new_topic(retention_ms="soon")),
    "create: a setting out of range": creating(new_topic(max_message_bytes="-1")),
    "create: an unknown setting": creating(new_topic(no_such_thing="1")),
    "create: more replicas in sync than there are": creating(new_topic(min_insync_replicas="2")),
    "create: nothing": creating(),
    "delete: an unknown topic": dropping("nowhere"),
    "delete: a topic without a name": dropping(""),
    "delete: the same twice": dropping("nowhere", "nowhere"),
    "metadata: an unknown topic": about("nowhere"),
    "metadata: a bad name": about("a b"),
    "metadata: no name": about(""),
    "metadata: the same twice": about(TOPIC, TOPIC),
    "metadata: an unknown id": about(NOWHERE),
    "metadata: an id too early": about(NOWHERE, version=11),
    "metadata: neither name nor id": about(None),
    "metadata: neither name nor id, too early": about(TOPIC, None, version=10),
    "metadata: a name that is no UTF-8": about(NOT_UTF8),
    "partitions: fewer": growing(TOPIC, 1),
    "partitions: as many": growing(TOPIC, 2),
    "partitions: none": growing(TOPIC, 0),
    "partitions: fewer than none": growing(TOPIC, -1),
    "partitions: of an unknown topic": growing("nowhere", 3),
    "partitions: placed nowhere": growing(TOPIC, 3, ()),
    "partitions: placed on another broker": growing(TOPIC, 3, (77,)),
    "partitions: placed too often": growing(TOPIC, 3, (1,), (1,)),
    "records: beyond the end": deleting(TOPIC, 0, 99),
    "records: before the start": deleting(TOPIC, 0, -2),
    "records: to the end": deleting(TOPIC, 1, -1),
    "records: of an unknown partition": deleting(TOPIC, 2, 0),
    "records: of a partition below none": deleting(TOPIC, -1, 0),
    "records: of an unknown topic": deleting("nowhere", 0, 0),
    "settings: of an unknown topic": describing((2, "nowhere")),
    "settings: of a bad name": describing((2, "a b")),
    "settings: of another broker": describing((4, "77")),
    "settings: of a broker that is no number": describing((4, "me")),
    "settings: of an unknown kind": describing((99, "x")),
    "settings: of an unknown kind and a topic": describing((0, "x"), (2, TOPIC)),
    "settings: of an unknown logger and a topic": describing((8, "x"), (2, TOPIC)),
    "alter: an unknown topic": altering("nowhere", 2, 0, "retention.ms", "1"),
    "alter: a bad name": altering("a b", 2, 0, "retention.ms", "1"),
    "alter: no name": altering("", 2, 0, "retention.ms", "1"),
    "alter: an unknown setting": altering(TOPIC, 2, 0, "no.such.thing", "1"),
    "alter: a bad value": altering(TOPIC, 2, 0, "retention.ms", "soon"),
    "alter: no value": altering(TOPIC, 2, 0, "retention.ms", None),
    "alter: append to a number": altering(TOPIC, 2, 2, "retention.ms", "1"),
    "alter: an unknown operation": altering(TOPIC, 2, 9, "retention.ms", "1"),
    "alter: another broker": altering("77", 4, 0, "log.retention.ms", "1"),
    "alter: a broker that is no number": altering("me", 4, 0, "log.retention.ms", "1"),
    "epoch: of an unknown partition": epoch_of(TOPIC, 2, -1, 0),
    "epoch: of an unknown topic": epoch_of("nowhere", 0, -1, 0),
    "epoch: unknown": epoch_of(TOPIC, 0, -1, 99),
    "epoch: believed too high": epoch_of(TOPIC, 0, 99, 0),
    "epoch: below none": epoch_of(TOPIC, 0, -1, -2),
    "find: a group": finding(0, "g", ""),
    "find: the same group twice": finding(0, "g", "g"),
    "find: an unknown kind": finding(9, "g"),
    "find: nothing": finding(0),
    "join: no group": joining(""),
    "join: a short session": joining(session_timeout=timedelta(milliseconds=1)),
    "join: a long session": joining(session_timeout=timedelta(days=1)),
    "join: a session below none": joining(session_timeout=timedelta(milliseconds=-1)),
    "join: no protocols": joining(protocols=()),
    "join: no kind": joining(protocol_type=""),
    "join: an unknown member": joining(member_id="unknown"),
    "join: the second step first": joining(version=5, member_id="unknown", group_instance_id="me"),
    "join: no id yet": joining("fresh", version=6),
    "sync: no group": syncing("", 0, "m"),
    "sync: an unknown group": syncing("missing", 0, "m"),
    "sync: an unknown group, before kinds": syncing("missing", 0, "m", version=3),
    "heartbeat: no group": beating("", 0, "m"),
    "heartbeat: an unknown group": beating("missing", 0, "m"),
    "heartbeat: below none": beating("missing", -1, ""),
    "leave: no group": leaving("", "m"),
    "leave: an unknown group": leaving("missing", "m"),
    "leave: no members": leaving("missing"),
    "leave: the same twice": leaving("missing", "m", "m"),
    "commit: no group": committing("", (TOPIC, 0, 1)),
    "commit: a group without members": committing("plain", (TOPIC, 0, 1)),
    "commit: a member of an unknown group": committing("missing", (TOPIC, 0, 1), generation=3, member="m"),
    "commit: an unknown topic": committing("plain", ("nowhere", 0, 1)),
    "commit: an unknown partition": committing("plain", (TOPIC, 2, 1)),
    "commit: below none": committing("plain", (TOPIC, 0, -5)),
    "commit: a long note": committing("plain", (TOPIC, 0, 1), note="x" * 5000),
    "commit: the same twice": committing("plain", (TOPIC, 0, 1), (TOPIC, 0, 2)),
    "commit: nothing": committing("plain"),
    "offsets: no group": offsets_of("", (TOPIC, (0,))),
    "offsets: an unknown group": offsets_of("missing", (TOPIC, (0, 0, 2, -1))),
    "offsets: an unknown topic": offsets_of("plain", ("nowhere", (0,))),
    "groups: unknown": Edge(Api.DESCRIBE_GROUPS, 5, asking_for("", "missing")),
    "groups: unknown, as an error": Edge(Api.DESCRIBE_GROUPS, 6, asking_for("", "missing")),
    "groups: away with unknown ones": Edge(Api.DELETE_GROUPS, 2, delete_groups.DeleteGroupsRequest(groups_names=("missing",))),
    "groups: away with no name": Edge(Api.DELETE_GROUPS, 2, delete_groups.DeleteGroupsRequest(groups_names=("",))),
    "groups: in an unknown state": Edge(
        Api.LIST_GROUPS, 5, list_groups.ListGroupsRequest(states_filter=("Dreaming",), types_filter=("nothing",))
    ),
    "fetch: an unknown topic": fetching(("nowhere", 0, 0)),
    "fetch: an unknown partition": fetching((TOPIC, 2, 0)),
    "fetch: below none": fetching((TOPIC, -1, 0)),
    "fetch: beyond the end": fetching((TOPIC, 0, 99)),
    "fetch: before the start": fetching((TOPIC, 0, -1)),
    "fetch: an epoch too high": fetching((TOPIC, 0, 0), epoch=9),
    "fetch: nothing": fetching(),
    "fetch: an unknown isolation level": fetching((TOPIC, 0, 0), isolation=2),
    "fetch: an isolation level below none": fetching((TOPIC, 0, 0), version=4, isolation=-1),
    "fetch: an unknown session": fetching((TOPIC, 0, 0), session=(77, 1)),
    "fetch: a session of no number": fetching((TOPIC, 0, 0), session=(0, 5)),
    "fetch: an end to an unknown session": fetching((TOPIC, 0, 0), session=(77, -1)),
    "fetch: anew after an unknown session": fetching((TOPIC, 0, 0), session=(77, 0)),
    "list: an unknown topic": listing(("nowhere", 0, -1)),
    "list: an unknown partition": listing((TOPIC, 2, -1)),
    "list: below none": listing((TOPIC, -1, -1)),
    "list: the same twice": listing((TOPIC, 0, -1), (TOPIC, 0, -2)),
    "list: an epoch too high": listing((TOPIC, 0, -1), epoch=9),
    "list: an unknown isolation level": listing((TOPIC, 0, -1), ("nowhere", 0, -1), isolation=2),
    "list: a time without a meaning": listing((TOPIC, 0, -99)),
    "produce: to an unknown topic": producing("nowhere", 0, BATCH),
    "produce: to an unknown partition": producing(TOPIC, 2, BATCH),
    "produce: nothing": producing(TOPIC, 0, b""),
    "produce: half a batch": producing(TOPIC, 0, BATCH[:-1]),
    "produce: two batches": producing(TOPIC, 0, BATCH * 2),
    "produce: a bad checksum": producing(TOPIC, 0, BATCH[:-1] + b"!"),
    "produce: odd acknowledgements": producing(TOPIC, 0, BATCH, acks=2),
    "produce: to an unknown topic, odd acknowledgements": producing("nowhere", 0, BATCH, acks=2),
    "produce: to a topic that needs more replicas": producing(STRICT, 0, BATCH, acks=-1),
    "produce: nothing to a topic that needs more replicas": producing(STRICT, 0, b"", acks=-1),
    "produce: to a topic that needs more replicas, for the leader": producing(STRICT, 0, BATCH),
    "produce: to the broker's own topic": producing("__consumer_offsets", 0, BATCH),
    "produce: nothing to the broker's own topic": producing("__consumer_offsets", 0, b""),
    "reassign: to where it is": reassigning(TOPIC, 0, (1,)),
    "reassign: no more": reassigning(TOPIC, 0, None),
    "reassign: to nowhere": reassigning(TOPIC, 0, ()),
    "reassign: to another broker": reassigning(TOPIC, 0, (77,)),
    "reassign: to one broker twice": reassigning(TOPIC, 0, (1, 1)),
    "reassign: an unknown partition": reassigning(TOPIC, 2, ()),
    "reassign: an unknown topic": reassigning("nowhere", 0, None),
    "move: to an unknown folder": moving("/nowhere", TOPIC, 0),
    "move: to no folder": moving("", TOPIC, 0),
    "move: an unknown partition to an unknown folder": moving("/nowhere", TOPIC, 2),
    "elect: the preferred": electing(0, (TOPIC, (0, 1, 2, -1)), ("nowhere", (0,)), ("a b", (0,))),
    "elect: any": electing(1, (TOPIC, (0, 0)), (TOPIC, (0,))),
    "elect: an unknown kind": electing(9, (TOPIC, (0,)), ("nowhere", (0,))),
    "elect: nothing": electing(0),
    "quorum: of the metadata": quorum_of(("__cluster_metadata", (0,))),
    "quorum: of the metadata twice": quorum_of(("__cluster_metadata", (0, 0))),
    "quorum: of the metadata and more": quorum_of(("__cluster_metadata", (0,)), (TOPIC, (0,))),
    "quorum: of a topic": quorum_of((TOPIC, (0, 9))),
    "quorum: of nothing": quorum_of(),
    "alter: what the cluster has, on a broker": altering("1", 4, 0, "min.insync.replicas", "1"),
    "alter: away with what the cluster has": altering("", 4, 1, "min.insync.replicas", None),
    "partitions of: an unknown topic": partitions_of("nowhere"),
    "partitions of: a bad name": partitions_of("a b", "..", TOPIC),
    "partitions of: few at a time": partitions_of(TOPIC, limit=1),
    "partitions of: from an unknown place": partitions_of(TOPIC, cursor=("other", 0)),
    "producers of: an unknown topic": producers_of("nowhere", 0),
    "producers of: a bad name": producers_of("a b", 0, -1),
    "producers of: unknown partitions": producers_of(TOPIC, 0, 2, -1),
    "producer: an id without an epoch": initialising(producer=5),
    "producer: an epoch without an id": initialising(epoch=5),
    "producer: no name": initialising(name=""),
    **DURATIONS,
}

DIFFERENT: dict[str, str] = {
    "alter: an unknown operation": "Kafka fails at it (UNKNOWN_SERVER_ERROR), we say INVALID_REQUEST",
    "list: the same twice": "Kafka answers once that it stands there twice, we answer each",
}


class Pair(NamedTuple):
    kafka: str
    ours: str


@pytest.fixture(scope="module")
def pair(real_kafka: str) -> Iterator[Pair]:
    with Broker() as broker:
        for servers in (real_kafka, broker.bootstrap_servers):
            with Admin(bootstrap_servers=servers) as admin:
                admin.create_topics({TOPIC: 2, "with_dot": 1})
                admin.create_topics({STRICT: 1}, configs={"min.insync.replicas": "2"})
            wait_for_groups(servers)
        yield Pair(real_kafka, broker.bootstrap_servers)


def wait_for_groups(servers: str) -> None:
    """Until the coordinator serves; the partition of each group has to be loaded first."""
    groups = ("", "g", "plain", "fresh", "missing")
    deadline = time.monotonic() + 60
    with RawClient(servers) as client:
        while any(
            client.ask(Api.FIND_COORDINATOR, finding(0, *groups).message).coordinators[index].error_code for index in range(5)
        ):
            assert time.monotonic() < deadline
        for group in groups[1:]:
            while beaten(client, group) in (ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator):
                assert time.monotonic() < deadline
                time.sleep(0.05)


def beaten(client: RawClient, group: str) -> ErrorCode:
    code = client.ask(Api.HEARTBEAT, beating(group, 0, "m").message).error_code
    assert isinstance(code, ErrorCode)
    return code


def outcome(servers: str, edge: Edge) -> list[str] | str:
    """The error codes of the answer, sorted, as brokers answer the parts of a request in their own order."""
    with RawClient(servers) as client:
        client.send_frame(frame(edge.api, edge.version, edge.message))
        try:
            answer = client.receive_frame()
        except ConnectionError:
            return "closed"
        return sorted(code.name for code in codes(decode_response(edge.api, edge.version, answer)[1]))


@pytest.mark.parametrize("name", EDGES)
def test_an_edge(pair: Pair, name: str) -> None:
    theirs, ours = (outcome(servers, EDGES[name]) for servers in pair)
    if name in DIFFERENT:
        assert ours != theirs, f"{name} is no difference any more"
    else:
        assert ours == theirs


@pytest.mark.parametrize("milliseconds", [2**63 - 1, -(2**63), 0])
def test_an_offset_with_an_odd_time_to_be_kept_is_there_at_first(pair: Pair, milliseconds: int) -> None:
    """It goes with the next search for expired offsets, which is minutes away."""
    for servers in pair:
        with RawClient(servers) as client:
            kept = keeping(milliseconds, 3)
            committed = client.ask(kept.api, kept.message, kept.version)
            assert list(codes(committed)) == [ErrorCode.none], servers
            asked = offsets_of("kept", (TOPIC, (0,)))
            answer = client.ask(asked.api, asked.message, asked.version)
            assert answer.groups[0].topics[0].partitions[0].committed_offset == 1, servers
