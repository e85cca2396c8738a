"""CreateTopics, CreatePartitions and DeleteTopics.

Owns which topics are created, changed and deleted, and the order of the checks. Must not know how topics are stored. Invariant: a
topic is created, changed or deleted whole or not at all, and each has its own result.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.api.registry import check_time_left, serves
from ottla.broker.config import TOPIC_SETTINGS
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.broker.slices import SIZE, Slices, until_done
from ottla.broker.topic_changes import TopicChange
from ottla.broker.topic_config import TopicConfig
from ottla.broker.topics import Topic
from ottla.coordinator.effects import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    create_partitions_request,
    create_partitions_response,
    create_topics_request,
    create_topics_response,
    delete_topics_request,
    delete_topics_response,
)
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


_TOPIC_CONFIG, _DEFAULT_CONFIG = 1, 5

log = logging.getLogger("ottla.broker")


@serves(Api.CREATE_TOPICS)
def create_topics(
    state: BrokerState, context: RequestContext, request: create_topics_request.CreateTopicsRequest, now: Now
) -> list[BrokerEffect]:
    """Create each topic if possible; a name that occurs twice in the request is refused once."""
    return state.sliced_requests.begin(context, _create_topics_slices(state, context, request), now)


def _create_topics_slices(
    state: BrokerState, context: RequestContext, request: create_topics_request.CreateTopicsRequest
) -> Slices:
    times = Counter(wanted.name for wanted in request.topics)
    results: dict[str, create_topics_response.CreatableTopicResult] = {}
    begun: list[tuple[str, int | None, TopicChange]] = []
    for number, wanted in enumerate(request.topics):
        if number and not number % SIZE:
            yield []
        try:
            check_time_left(request.timeout)
            if times[wanted.name] > 1:
                raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
            new = _new_topic(state, wanted)
            results[wanted.name] = _valid(wanted.name, new.partitions)
            if not request.validate_only:
                change = state.catalog.changes.create(wanted.name, new.partitions, new.configs, new.replicas)
                begun.append((wanted.name, new.requested, change))
        except ApiError as api_error:
            results[wanted.name] = _refused(wanted.name, api_error)
    for name, requested, change in begun:
        yield from until_done(change)
        try:
            results[name] = _created(change.result(), requested)
        except ApiError as api_error:
            results[name] = _refused(name, api_error)
    response = create_topics_response.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results.values()))
    return [Reply(context.ticket, response)]


class _NewTopic(NamedTuple):
    """A valid topic that does not exist. ``requested``: the requested partition count; ``None``: the broker's default."""

    requested: int | None
    partitions: int
    replicas: tuple[int, ...] | None
    configs: Mapping[str, str]


def _new_topic(state: BrokerState, wanted: create_topics_request.CreatableTopic) -> _NewTopic:
    """Check a topic to be created. Raises ``ApiError``."""
    state.catalog.topics.check_unused(wanted.name)  # of several errors Kafka reports this one
    configs: dict[str, str] = {}
    for config in wanted.configs:
        if config.value is None:
            raise ApiError(ErrorCode.invalid_config, f"Null value not supported for topic configs: {config.name}")
        configs[config.name] = config.value
    replicas = _requested_replicas(state, wanted)
    requested = len(replicas) if replicas is not None else None if wanted.num_partitions == -1 else wanted.num_partitions
    partitions = state.catalog.initial_partition_count(wanted.name, requested)
    state.catalog.topics.check_new(wanted.name, partitions if requested is None else requested, configs)
    return _NewTopic(requested, partitions, replicas if partitions == requested else None, configs)


def _valid(name: str, partitions: int) -> create_topics_response.CreatableTopicResult:
    """Return the result for a topic that is only validated."""
    return create_topics_response.CreatableTopicResult(
        name=name,
        topic_id=None,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=partitions,
        replication_factor=1,
        configs=(),
    )


def _created(topic: Topic, requested: int | None) -> create_topics_response.CreatableTopicResult:
    if requested not in (None, topic.partition_count):
        log.warning(
            "%s was created with %d partitions, as the broker's settings say, not with %d",
            topic.name,
            topic.partition_count,
            requested,
        )
    return create_topics_response.CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=topic.partition_count,
        replication_factor=1,
        configs=_configs(topic),
    )


def _requested_replicas(state: BrokerState, wanted: create_topics_request.CreatableTopic) -> tuple[int, ...] | None:
    """Return the broker of each partition by manual assignments; ``None`` without them."""
    brokers = state.catalog.cluster.brokers
    if not wanted.assignments:
        if wanted.replication_factor not in (-1, 1):
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                f"Unable to replicate the partition {wanted.replication_factor} time(s): "
                + (f"only {len(brokers)} broker(s) are registered." if len(brokers) == 1 else "Ottla's brokers do not replicate."),
            )
        return None
    if wanted.num_partitions != -1 or wanted.replication_factor != -1:
        raise ApiError(ErrorCode.invalid_request, "With manual assignments, the numbers of partitions and of replicas must be -1.")
    by_number = {assignment.partition_index: assignment.broker_ids for assignment in wanted.assignments}
    placed = all(len(replicas) == 1 and replicas[0] in brokers for replicas in by_number.values())
    if sorted(assignment.partition_index for assignment in wanted.assignments) != list(range(len(by_number))) or not placed:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Partitions must be numbered from 0 without gaps, each with one replica on broker {_any_of(brokers)}.",
        )
    return tuple(by_number[number][0] for number in range(len(by_number)))


def _any_of(brokers: Mapping[int, object]) -> str:
    return " or ".join(map(str, brokers))


def _refused(name: str, api_error: ApiError) -> create_topics_response.CreatableTopicResult:
    return create_topics_response.CreatableTopicResult(
        name=name, topic_id=None, error_code=api_error.code, error_message=api_error.message, configs=()
    )


def _configs(topic: Topic) -> tuple[create_topics_response.CreatableTopicConfigs, ...]:
    return _described(topic.config, frozenset(topic.overrides))


@lru_cache(16)
def _described(config: TopicConfig, overrides: frozenset[str]) -> tuple[create_topics_response.CreatableTopicConfigs, ...]:
    """Cached: many topics of one request have the same settings."""
    return tuple(
        create_topics_response.CreatableTopicConfigs(
            name=name,
            value=setting.text(getattr(config, attribute)),
            read_only=False,
            config_source=_TOPIC_CONFIG if name in overrides else _DEFAULT_CONFIG,
            is_sensitive=False,
        )
        for name, (attribute, setting) in TOPIC_SETTINGS.items()
    )


@serves(Api.CREATE_PARTITIONS)
def create_partitions(
    state: BrokerState, context: RequestContext, request: create_partitions_request.CreatePartitionsRequest, now: Now
) -> list[BrokerEffect]:
    """Give each topic more partitions; a name that occurs twice in the request is refused once."""
    return state.sliced_requests.begin(context, _create_partitions_slices(state, context, request), now)


def _create_partitions_slices(
    state: BrokerState, context: RequestContext, request: create_partitions_request.CreatePartitionsRequest
) -> Slices:
    times = Counter(wanted.name for wanted in request.topics)
    results: dict[str, ApiError | TopicChange | None] = {}
    for number, wanted in enumerate(request.topics):
        if number and not number % SIZE:
            yield []
        try:
            if times[wanted.name] > 1:
                raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
            check_time_left(request.timeout)
            known = state.catalog.topic(wanted.name)
            topic = state.catalog.topics.with_partitions(known, wanted.count)
            replicas = _new_replicas(state, wanted, topic.partition_count - known.partition_count)
            results[wanted.name] = None if request.validate_only else state.catalog.changes.extend(topic, replicas)
        except ApiError as api_error:
            results[wanted.name] = api_error
    for name, begun in results.items():
        if isinstance(begun, TopicChange):
            yield from until_done(begun)
            try:
                begun.result()
            except ApiError as api_error:
                results[name] = api_error
    response = create_partitions_response.CreatePartitionsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            create_partitions_response.CreatePartitionsTopicResult(
                name=name,
                error_code=result.code if isinstance(result, ApiError) else ErrorCode.none,
                error_message=result.message if isinstance(result, ApiError) else None,
            )
            for name, result in results.items()
        ),
    )
    return [Reply(context.ticket, response)]


def _new_replicas(
    state: BrokerState, wanted: create_partitions_request.CreatePartitionsTopic, added: int
) -> tuple[int, ...] | None:
    """Return the broker of each new partition by manual assignments; ``None`` without them. Raises ``ApiError``."""
    if wanted.assignments is None:
        return None
    if len(wanted.assignments) != added:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {added} additional partition(s), but only {len(wanted.assignments)} assignment(s) were specified.",
        )
    brokers = state.catalog.cluster.brokers
    if any(len(assignment.broker_ids) != 1 or assignment.broker_ids[0] not in brokers for assignment in wanted.assignments):
        raise ApiError(
            ErrorCode.invalid_replica_assignment, f"Each new partition must have one replica, on broker {_any_of(brokers)}."
        )
    return tuple(assignment.broker_ids[0] for assignment in wanted.assignments)


@serves(Api.DELETE_TOPICS)
def delete_topics(
    state: BrokerState, context: RequestContext, request: delete_topics_request.DeleteTopicsRequest, now: Now
) -> list[BrokerEffect]:
    """Delete each topic, named by name or by id."""
    return state.sliced_requests.begin(context, _delete_topics_slices(state, context, request), now)


def _delete_topics_slices(
    state: BrokerState, context: RequestContext, request: delete_topics_request.DeleteTopicsRequest
) -> Slices:
    results: dict[delete_topics_request.DeleteTopicState, ApiError | TopicChange] = {}
    times = Counter((wanted.name, wanted.topic_id) for wanted in request.topics)
    in_slice = 0
    for wanted in dict.fromkeys(request.topics):
        if in_slice >= SIZE:
            yield []
            in_slice = 0
        in_slice += 1
        try:
            if times[wanted.name, wanted.topic_id] > 1:
                raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
            check_time_left(request.timeout)
            topic = _find(state, wanted)
            results[wanted] = state.catalog.changes.delete(topic)
            in_slice += topic.partition_count - 1
        except ApiError as api_error:
            results[wanted] = api_error
    for begun in results.values():
        if isinstance(begun, TopicChange):
            yield from until_done(begun)
    responses = tuple(_deleted(wanted, result) for wanted, result in results.items())
    response = delete_topics_response.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=responses)
    return [Reply(context.ticket, response)]


def _deleted(
    wanted: delete_topics_request.DeleteTopicState, result: ApiError | TopicChange
) -> delete_topics_response.DeletableTopicResult:
    try:
        if isinstance(result, ApiError):
            raise result
        topic = result.result()
    except ApiError as api_error:
        return delete_topics_response.DeletableTopicResult(
            name=wanted.name, topic_id=wanted.topic_id, error_code=api_error.code, error_message=api_error.message
        )
    return delete_topics_response.DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.none, error_message=None
    )


def _find(state: BrokerState, wanted: delete_topics_request.DeleteTopicState) -> Topic:
    if not state.catalog.config.delete_topic_enable:
        raise ApiError(ErrorCode.topic_deletion_disabled, "Topic deletion is disabled.")
    if (wanted.name is None) == (wanted.topic_id is None):
        raise ApiError(ErrorCode.invalid_request, "Name a topic by name or by id, not by both or neither.")
    topic = state.catalog.topic(wanted.name) if wanted.name is not None else state.catalog.topic_by_id(wanted.topic_id)
    if topic.internal:
        raise ApiError(ErrorCode.invalid_request, f"Topic '{topic.name}' belongs to the broker: groups and offsets are in it.")
    return topic
