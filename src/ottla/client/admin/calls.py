"""The calls of an ``Admin``: each attempt of a call is a generator that yields requests and returns the result.

Owns the requests of each call and the meaning of their responses. Must not know time, retries, connections or threads. Invariant: a
call can be attempted again after any failure; the state of earlier attempts is in its closure:

1. An attempt of ``create_topics`` sends the request, and the response is lost.
2. The next attempt sends it again, and the broker answers TOPIC_ALREADY_EXISTS. The earlier attempt has created the topic, so that
   is a success.

An attempt yields a tuple of ``AdminRequest`` and receives the responses in the same order (``ask``, ``ask_each``). It raises
``PermanentFailure`` for an error that a retry does not fix, and any other ``OttlaError`` to be attempted again if that is
``retriable``.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ottla.client.admin.results import (
    ClusterDescription,
    ConfigEntry,
    GroupListing,
    TopicDescription,
)
from ottla.client.cluster.coordinator import CoordinatorKind
from ottla.errors import (
    BrokerError,
    InvalidRequestError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    OttlaError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from ottla.protocol import ErrorCode, duration, rpcs
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import (
    create_partitions_request,
    create_topics_request,
    delete_groups_request,
    delete_records_request,
    delete_topics_request,
    describe_configs_request,
    find_coordinator_request,
    incremental_alter_configs_request,
    list_groups_request,
    list_offsets_request,
    metadata_request,
    metadata_response,
    offset_commit_request,
    offset_fetch_request,
)
from ottla.protocol.rpcs import RequestT, ResponseT, Rpc
from ottla.types import IsolationLevel, Node, OffsetAndMetadata, OffsetAndTimestamp, PartitionInfo, TopicPartition

EARLIEST, LATEST = -2, -1
"""Special timestamps of ListOffsets: the first offset of a log, and the one after the last record."""

_SET, _DELETE = 0, 1
"""The operations of IncrementalAlterConfigs."""

RESOURCES: Mapping[str, int] = {"topic": 2, "broker": 4, "group": 32}
"""Type of resource -> its number in the protocol."""

_SOURCES: Mapping[int, str] = {
    1: "topic", 2: "dynamic broker", 3: "dynamic default", 4: "broker", 5: "default", 6: "logger", 7: "client metrics", 8: "group",
}  # fmt: skip


class PermanentFailure(Exception):
    """The call fails with ``error``, which a retry does not fix."""

    def __init__(self, error: OttlaError) -> None:
        super().__init__(str(error))
        self.error = error


class NotYetVisibleError(OttlaError):
    """The change was made, but brokers do not show it yet: the next attempt checks again."""

    retriable = True


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """One request; ``node=None``: to any broker. See ``Send`` for ``requires``, ``excludes`` and ``on_sent``.

    If it fails, so does the attempt; with ``may_fail`` the attempt receives the error in place of the response.
    """

    rpc: Rpc[Any, Any]
    message: Any
    node: Node | None = None
    requires: VersionRule | None = None
    excludes: VersionRule | None = None
    on_sent: Callable[[], object] | None = None
    may_fail: bool = False


ResultT = TypeVar("ResultT")
ValueT = TypeVar("ValueT")

CallAttempt = Generator[tuple[AdminRequest, ...], list[Any], ResultT]
Call = Callable[[], CallAttempt[ResultT]]
"""Starts an attempt of a call."""


def ask(rpc: Rpc[RequestT, ResponseT], message: RequestT, node: Node | None = None) -> CallAttempt[ResponseT]:
    """Return the response of one broker; ``node=None``: of any."""
    (response,) = yield from ask_each(rpc, [(message, node)])
    return response


def ask_each(rpc: Rpc[RequestT, ResponseT], requests: Iterable[tuple[RequestT, Node | None]]) -> CallAttempt[list[ResponseT]]:
    """Return the response to each request; all are sent at once."""
    responses: list[ResponseT] = yield tuple(AdminRequest(rpc, message, node) for message, node in requests)
    return responses


# -- topics ---------------------------------------------------------------------------------------------------------------


def create_topics(
    topics: Mapping[str, int], replication_factor: int, configs: Mapping[str, str], validate_only: bool, timeout: int
) -> Call[None]:
    """Create topics, and wait until brokers name a leader for each partition."""
    missing = dict(topics)
    sent: set[str] = set()

    def attempt() -> CallAttempt[None]:
        if missing:
            controller, _ = yield from cluster()
            settings = tuple(create_topics_request.CreatableTopicConfig(name=name, value=value) for name, value in configs.items())
            wanted = tuple(
                create_topics_request.CreatableTopic(
                    name=name, num_partitions=count, replication_factor=replication_factor, assignments=(), configs=settings
                )
                for name, count in missing.items()
            )
            message = create_topics_request.CreateTopicsRequest(
                topics=wanted, timeout=duration(timeout), validate_only=validate_only
            )
            is_retry = bool(sent)
            sent.update(missing)
            answer = yield from ask(rpcs.CREATE_TOPICS, message, controller)
            results = {item.name: item for item in answer.topics}
            _remove_done(missing, results, "topic", already_done=ErrorCode.topic_already_exists if is_retry else None)
        if validate_only:
            return
        descriptions = yield from _topics(list(topics))
        for topic in descriptions.values():
            if not topic.partitions or any(part.leader is None for part in topic.partitions):
                raise NotYetVisibleError(f"topic {topic.name!r} is new and has no leader yet")

    return attempt


def delete_topics(names: Iterable[str], timeout: int) -> Call[None]:
    """Delete topics, and wait until brokers no longer have them, or have new topics with these names (other ids)."""
    left = dict.fromkeys(names)
    sent: set[str] = set()
    deleted: dict[str, uuid.UUID | None] = {}

    def attempt() -> CallAttempt[None]:
        if left:
            controller, _ = yield from cluster()
            topics = tuple(delete_topics_request.DeleteTopicState(name=name, topic_id=None) for name in left)
            is_retry = bool(sent)
            sent.update(left)
            message = delete_topics_request.DeleteTopicsRequest(topics=topics, timeout=duration(timeout))
            answer = yield from ask(rpcs.DELETE_TOPICS, message, controller)
            results = {item.name: item for item in answer.responses if item.name is not None}
            deleted.update((name, item.topic_id) for name, item in results.items() if not item.error_code)
            _remove_done(left, results, "topic", already_done=ErrorCode.unknown_topic_or_partition if is_retry else None)
        metadata = yield from _metadata(deleted)
        for topic in metadata.topics:
            if topic.name is not None and not topic.error_code and deleted[topic.name] in (None, topic.topic_id):
                raise NotYetVisibleError(f"topic {topic.name!r} is not deleted yet")

    return attempt


def list_topics(include_internal: bool) -> Call[dict[str, TopicDescription]]:
    """Return all topics, by name."""

    def attempt() -> CallAttempt[dict[str, TopicDescription]]:
        topics = yield from _topics(None)
        return {name: topic for name, topic in sorted(topics.items()) if include_internal or not topic.is_internal}

    return attempt


def describe_topics(names: Iterable[str]) -> Call[dict[str, TopicDescription]]:
    """Return these topics, by name."""
    unique = list(dict.fromkeys(names))

    def attempt() -> CallAttempt[dict[str, TopicDescription]]:
        topics = yield from _topics(unique, refuse_unknown=True)
        return {name: topics[name] for name in unique}

    return attempt


def describe_cluster() -> Call[ClusterDescription]:
    """Return the brokers and the controller."""

    def attempt() -> CallAttempt[ClusterDescription]:
        answer = yield from _metadata(())
        nodes = tuple(sorted(_nodes(answer).values()))
        controller = next((node for node in nodes if node.node_id == answer.controller_id), None)
        return ClusterDescription(answer.cluster_id, controller, nodes)

    return attempt


def describe_configs(kind: str, name: str) -> Call[dict[str, ConfigEntry]]:
    """Return all settings of one topic, broker or group."""

    def attempt() -> CallAttempt[dict[str, ConfigEntry]]:
        node = yield from _node_for_configs(kind, name)
        resource = describe_configs_request.DescribeConfigsResource(
            resource_type=RESOURCES[kind], resource_name=name, configuration_keys=None
        )
        message = describe_configs_request.DescribeConfigsRequest(resources=(resource,))
        answer = yield from ask(rpcs.DESCRIBE_CONFIGS, message, node)
        (result,) = answer.results
        if result.error_code:
            raise PermanentFailure(broker_error(int(result.error_code), result.error_message or f"{kind} {name!r}"))
        return {
            item.name: ConfigEntry(
                item.name, item.value, _SOURCES.get(item.config_source, "unknown"), item.read_only, item.is_sensitive
            )
            for item in sorted(result.configs, key=lambda item: str(item.name))
        }

    return attempt


def create_partitions(counts: Mapping[str, int], validate_only: bool, timeout: int) -> Call[None]:
    """Increase the number of partitions of topics, and wait until brokers name a leader for each partition."""
    missing = dict(counts)
    sent: set[str] = set()

    def attempt() -> CallAttempt[None]:
        if missing:
            controller, _ = yield from cluster()
            topics = tuple(
                create_partitions_request.CreatePartitionsTopic(name=name, count=count, assignments=None)
                for name, count in missing.items()
            )
            is_retry = bool(sent)
            sent.update(missing)
            message = create_partitions_request.CreatePartitionsRequest(
                topics=topics, timeout=duration(timeout), validate_only=validate_only
            )
            answer = yield from ask(rpcs.CREATE_PARTITIONS, message, controller)
            results = {item.name: item for item in answer.results}
            _remove_done(missing, results, "topic", already_done=ErrorCode.invalid_partitions if is_retry else None)
        if validate_only:
            return
        topics_now = yield from _topics(list(counts))
        for topic in topics_now.values():
            if len(topic.partitions) < counts[topic.name] or any(part.leader is None for part in topic.partitions):
                raise NotYetVisibleError(f"topic {topic.name!r} has new partitions without a leader")

    return attempt


def delete_records(offsets: Mapping[TopicPartition, int], timeout: int) -> Call[dict[TopicPartition, int]]:
    """Delete the records before an offset (-1: all records) of each partition; return the new first offsets."""
    low_watermarks: dict[TopicPartition, int] = {}

    def attempt() -> CallAttempt[dict[TopicPartition, int]]:
        left = [tp for tp in offsets if tp not in low_watermarks]
        leaders = yield from leaders_of(left)
        requests: list[tuple[delete_records_request.DeleteRecordsRequest, Node | None]] = []
        for node in dict.fromkeys(leaders.values()):
            topics = tuple(
                delete_records_request.DeleteRecordsTopic(
                    name=name,
                    partitions=tuple(
                        delete_records_request.DeleteRecordsPartition(partition_index=tp.partition, offset=offsets[tp])
                        for tp in tps
                    ),
                )
                for name, tps in by_topic(tp for tp in left if leaders[tp] == node).items()
            )
            requests.append((delete_records_request.DeleteRecordsRequest(topics=topics, timeout=duration(timeout)), node))
        answers = yield from ask_each(rpcs.DELETE_RECORDS, requests)
        for answer in answers:
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.error_code == ErrorCode.offset_out_of_range:
                        tp = TopicPartition(topic.name, part.partition_index)
                        hint = 'the offset is beyond the end of the log; "latest" deletes all records'
                        raise PermanentFailure(OffsetOutOfRangeError(f"the records of {tp} before offset {offsets[tp]}", hint=hint))
                    check(part.error_code, f"the records of {topic.name}-{part.partition_index}")
                    low_watermarks[TopicPartition(topic.name, part.partition_index)] = part.low_watermark
        return {tp: low_watermarks[tp] for tp in offsets}

    return attempt


def alter_configs(kind: str, name: str, changes: Mapping[str, str | None], validate_only: bool) -> Call[None]:
    """Change settings of one topic, broker or group; ``None`` removes one. The others do not change."""

    def attempt() -> CallAttempt[None]:
        node = yield from _node_for_configs(kind, name)
        configs = tuple(
            incremental_alter_configs_request.AlterableConfig(
                name=setting, config_operation=_DELETE if value is None else _SET, value=value
            )
            for setting, value in changes.items()
        )
        resource = incremental_alter_configs_request.AlterConfigsResource(
            resource_type=RESOURCES[kind], resource_name=name, configs=configs
        )
        message = incremental_alter_configs_request.IncrementalAlterConfigsRequest(
            resources=(resource,), validate_only=validate_only
        )
        answer = yield from ask(rpcs.INCREMENTAL_ALTER_CONFIGS, message, node)
        (result,) = answer.responses
        check(result.error_code, result.error_message or f"{kind} {name!r}", {ErrorCode.unknown_topic_or_partition})

    return attempt


# -- groups ---------------------------------------------------------------------------------------------------------------


def list_groups() -> Call[tuple[GroupListing, ...]]:
    """Return the groups of all brokers."""

    def attempt() -> CallAttempt[tuple[GroupListing, ...]]:
        _, nodes = yield from cluster()
        requests = [(list_groups_request.ListGroupsRequest(), node) for node in nodes.values()]
        answers = yield from ask_each(rpcs.LIST_GROUPS, requests)
        for answer in answers:
            check(answer.error_code, "the groups of a broker")
        groups = {
            item.group_id: GroupListing(
                item.group_id, item.protocol_type, item.group_state, "central" if item.is_central else item.group_type
            )
            for answer in answers
            for item in answer.groups
        }
        return tuple(groups[group_id] for group_id in sorted(groups))

    return attempt


def delete_groups(group_ids: Iterable[str]) -> Call[None]:
    """Delete groups without members."""
    left = dict.fromkeys(group_ids)

    def attempt() -> CallAttempt[None]:
        coordinators = yield from coordinators_of(left)
        answers = yield from ask_each(
            rpcs.DELETE_GROUPS,
            [(delete_groups_request.DeleteGroupsRequest(groups_names=(name,)), node) for name, node in coordinators.items()],
        )
        _remove_done(left, {item.group_id: item for answer in answers for item in answer.results}, "group")

    return attempt


def group_offsets(
    group_id: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
) -> Call[dict[TopicPartition, OffsetAndMetadata]]:
    """Return the committed offsets of a group, all or some; with ``require_stable``, wait while a transaction with some of them is
    ending."""
    topics = None
    if partitions is not None:
        topics = tuple(
            offset_fetch_request.OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(tp.partition for tp in tps))
            for topic, tps in by_topic(partitions).items()
        )

    def attempt() -> CallAttempt[dict[TopicPartition, OffsetAndMetadata]]:
        coordinators = yield from coordinators_of([group_id])
        group = offset_fetch_request.OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        message = offset_fetch_request.OffsetFetchRequest(groups=(group,), require_stable=require_stable)
        rule = VersionRule.STABLE_OFFSETS if require_stable else None
        (answer,) = yield (AdminRequest(rpcs.OFFSET_FETCH, message, coordinators[group_id], requires=rule),)
        (result,) = answer.groups
        check(result.error_code, f"group {group_id!r}")
        offsets = {}
        for topic in result.topics:
            for part in topic.partitions:
                check(part.error_code, f"the offset of {topic.name}-{part.partition_index}")
                if part.committed_offset >= 0:
                    epoch = part.committed_leader_epoch if part.committed_leader_epoch >= 0 else None
                    offset = OffsetAndMetadata(part.committed_offset, part.metadata or "", epoch)
                    offsets[TopicPartition(topic.name, part.partition_index)] = offset
        return dict(sorted(offsets.items()))

    return attempt


def alter_group_offsets(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], retention_ms: int | None = None
) -> Call[None]:
    """Commit offsets for a group without members; ``None``: they expire as the broker is set."""

    def attempt() -> CallAttempt[None]:
        coordinators = yield from coordinators_of([group_id])
        topics = tuple(
            offset_commit_request.OffsetCommitRequestTopic(
                name=topic,
                partitions=tuple(
                    offset_commit_request.OffsetCommitRequestPartition(
                        partition_index=tp.partition,
                        committed_offset=offsets[tp].offset,
                        committed_leader_epoch=-1 if (epoch := offsets[tp].leader_epoch) is None else epoch,
                        committed_metadata=offsets[tp].metadata,
                    )
                    for tp in partitions
                ),
            )
            for topic, partitions in by_topic(offsets).items()
        )
        message = offset_commit_request.OffsetCommitRequest(group_id=group_id, member_id="", topics=topics)
        rule = None
        if retention_ms is not None:
            message, rule = dataclasses.replace(message, retention_time_ms=retention_ms), VersionRule.BROKERS_RETENTION
        (answer,) = yield (AdminRequest(rpcs.OFFSET_COMMIT, message, coordinators[group_id], excludes=rule),)
        for topic in answer.topics:
            for part in topic.partitions:
                what = f"the offset of {topic.name}-{part.partition_index} of group {group_id!r}"
                check(part.error_code, what, final={ErrorCode.unknown_topic_or_partition})

    return attempt


# -- offsets --------------------------------------------------------------------------------------------------------------


def list_offsets(
    times: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> Call[dict[TopicPartition, OffsetAndTimestamp | None]]:
    """Return for each partition the first offset at or after a time; ``None`` if there is none."""
    results: dict[TopicPartition, OffsetAndTimestamp | None] = {}

    def attempt() -> CallAttempt[dict[TopicPartition, OffsetAndTimestamp | None]]:
        left = [tp for tp in times if tp not in results]
        leaders = yield from leaders_of(left)
        by_node: dict[Node, list[TopicPartition]] = defaultdict(list)
        for tp in left:
            by_node[leaders[tp]].append(tp)
        requests = [(_times_of(tps, times, isolation), node) for node, tps in by_node.items()]
        answers = yield from ask_each(rpcs.LIST_OFFSETS, requests)
        for answer in answers:
            for topic in answer.topics:
                for part in topic.partitions:
                    check(part.error_code, f"the offsets of {topic.name}-{part.partition_index}")
                    epoch = part.leader_epoch if part.leader_epoch >= 0 else None
                    result = OffsetAndTimestamp(part.offset, part.timestamp, epoch) if part.offset >= 0 else None
                    results[TopicPartition(topic.name, part.partition_index)] = result
        return {tp: results[tp] for tp in times}

    return attempt


def _times_of(
    tps: list[TopicPartition], times: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> list_offsets_request.ListOffsetsRequest:
    topics = tuple(
        list_offsets_request.ListOffsetsTopic(
            name=name,
            partitions=tuple(
                list_offsets_request.ListOffsetsPartition(partition_index=tp.partition, timestamp=times[tp]) for tp in partitions
            ),
        )
        for name, partitions in by_topic(tps).items()
    )
    return list_offsets_request.ListOffsetsRequest(
        replica_id=-1, isolation_level=int(isolation), topics=topics, timeout=duration(30_000)
    )


# -- shared by several calls ----------------------------------------------------------------------------------------------


def _metadata(names: Iterable[str] | None) -> CallAttempt[metadata_response.MetadataResponse]:
    topics = None if names is None else tuple(metadata_request.MetadataRequestTopic(topic_id=None, name=name) for name in names)
    message = metadata_request.MetadataRequest(
        topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    answer = yield from ask(rpcs.METADATA, message)
    check(answer.error_code, "the cluster")
    return answer


def _nodes(answer: metadata_response.MetadataResponse) -> dict[int, Node]:
    return {item.node_id: Node(item.node_id, item.host, item.port, item.rack) for item in answer.brokers}


def cluster() -> CallAttempt[tuple[Node | None, dict[int, Node]]]:
    """Return the controller, ``None`` if the metadata has none, and all brokers."""
    answer = yield from _metadata(())
    nodes = _nodes(answer)
    return nodes.get(answer.controller_id), nodes


def _node_for_configs(kind: str, name: str) -> CallAttempt[Node | None]:
    """Return the broker with the settings of a resource: a broker for its own, ``None`` (any broker) for other resources."""
    _, nodes = yield from cluster()
    node = nodes.get(int(name)) if kind == "broker" and name.isdecimal() else None
    if kind == "broker" and node is None:
        raise PermanentFailure(InvalidRequestError(f"there is no broker {name!r}, only {', '.join(map(str, sorted(nodes)))}"))
    return node


def _topics(names: list[str] | None, *, refuse_unknown: bool = False) -> CallAttempt[dict[str, TopicDescription]]:
    answer = yield from _metadata(names)
    topics = [_topic(topic, refuse_unknown) for topic in answer.topics]
    return {topic.name: topic for topic in topics}


def _topic(topic: metadata_response.MetadataResponseTopic, refuse_unknown: bool) -> TopicDescription:
    name = topic.name or ""
    check(topic.error_code, f"topic {name!r}", (ErrorCode.unknown_topic_or_partition,) if refuse_unknown else ())
    partitions = tuple(
        PartitionInfo(
            name,
            part.partition_index,
            part.leader_id if part.leader_id >= 0 else None,
            part.leader_epoch if part.leader_epoch >= 0 else None,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
        )
        for part in sorted(topic.partitions, key=lambda part: int(part.partition_index))
    )
    return TopicDescription(name, topic.topic_id, topic.is_internal, partitions)


def leaders_of(tps: Iterable[TopicPartition]) -> CallAttempt[dict[TopicPartition, Node]]:
    """Return the leader of each partition."""
    wanted = list(tps)
    answer = yield from _metadata(dict.fromkeys(tp.topic for tp in wanted))
    nodes = _nodes(answer)
    leaders: dict[TopicPartition, int | None] = {}
    for topic in answer.topics:
        for part in _topic(topic, refuse_unknown=True).partitions:
            leaders[TopicPartition(part.topic, part.partition)] = part.leader
    for tp in wanted:
        if tp not in leaders:
            raise PermanentFailure(UnknownTopicOrPartitionError(f"topic {tp.topic!r} has no partition {tp.partition}"))
        if leaders[tp] not in nodes:
            raise LeaderNotAvailableError(f"partition {tp}")
    return {tp: nodes[leader] for tp in wanted if (leader := leaders[tp]) is not None}


def coordinators_of(group_ids: Iterable[str]) -> CallAttempt[dict[str, Node]]:
    wanted = list(group_ids)
    # One key in each request: brokers before 2.8 accept no more.
    answers = yield from ask_each(
        rpcs.FIND_COORDINATOR,
        [
            (find_coordinator_request.FindCoordinatorRequest(key_type=CoordinatorKind.GROUP, coordinator_keys=(key,)), None)
            for key in wanted
        ],
    )
    coordinators = {}
    for group_id, answer in zip(wanted, answers, strict=True):
        (item,) = answer.coordinators
        check(item.error_code, item.error_message or f"the coordinator of group {group_id!r}")
        coordinators[group_id] = Node(item.node_id, item.host, item.port)
    return coordinators


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each topic."""
    topics: dict[str, list[TopicPartition]] = defaultdict(list)
    for tp in tps:
        topics[tp.topic].append(tp)
    return topics


def check(code: ErrorCode, what: str, final: Iterable[int] = ()) -> None:
    if code:
        error = broker_error(int(code), what)
        raise PermanentFailure(error) if int(code) in final or not error.retriable else error


class _Result(Protocol):
    @property
    def error_code(self) -> ErrorCode: ...


def _remove_done(left: dict[str, ValueT], results: Mapping[str, _Result], kind: str, *, already_done: int | None = None) -> None:
    """Remove the successful items from ``left``, and raise the errors of the others.

    ``already_done`` is the error code that means that an earlier attempt succeeded.
    """
    errors: dict[str, BrokerError] = {}
    for name, item in results.items():
        code = int(item.error_code)
        if not code or code == already_done:
            left.pop(name, None)
        else:
            message = getattr(item, "error_message", None)
            errors[name] = broker_error(code, f"{kind} {name!r}: {message}" if message else f"{kind} {name!r}")
            if message and code == ErrorCode.invalid_topic_exception:
                errors[name].hint = ""  # it repeats the broker's message, and contradicts it if two names collide
    final = [error for error in errors.values() if not error.retriable or error.code == ErrorCode.unknown_topic_or_partition]
    if final:
        raise PermanentFailure(type(final[0])("; ".join(_text_of(error) for error in errors.values()), hint=final[0].hint))
    for error in errors.values():
        raise error


def _text_of(error: BrokerError) -> str:
    return str(error.args[0]).removesuffix(f" [{error.name}]")
