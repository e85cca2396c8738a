"""CreateTopics, CreatePartitions and DeleteTopics.

Owns which topics are created, changed and deleted, and the order of the checks. Must not know how topics are stored. Invariant: a
topic is created, changed or deleted whole or not at all, and each has its own result.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from ottla.broker.api.registry import check_time_left, serves
from ottla.broker.config import TOPIC_SETTINGS
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.broker.slices import SIZE, Slices
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
    for number, wanted in enumerate(request.topics):
        if number and not number % SIZE:
            yield []
        try:
            check_time_left(request.timeout)
            if times[wanted.name] > 1:
                raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
            results[wanted.name] = _create(state, wanted, validate_only=request.validate_only)
        except ApiError as api_error:
            results[wanted.name] = _refused(wanted.name, api_error)
    response = create_topics_response.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results.values()))
    return [Reply(context.ticket, response)]


def _create(
    state: BrokerState, wanted: create_topics_request.CreatableTopic, *, validate_only: bool
) -> create_topics_response.CreatableTopicResult:
    state.catalog.topics.check_unused(wanted.name)  # of several errors Kafka reports this one
    configs: dict[str, str] = {}
    for config in wanted.configs:
        if config.value is None:
            raise ApiError(ErrorCode.invalid_config, f"Null value not supported for topic configs: {config.name}")
        configs[config.name] = config.value
    requested = _requested_partitions(state, wanted)
    partitions = state.catalog.initial_partition_count(wanted.name, requested)
    state.catalog.topics.check_new(wanted.name, partitions if requested is None else requested, configs)
    if validate_only:
        return create_topics_response.CreatableTopicResult(
            name=wanted.name,
            topic_id=None,
            error_code=ErrorCode.none,
            error_message=None,
            num_partitions=partitions,
            replication_factor=1,
            configs=(),
        )
    topic = state.catalog.create_topic(wanted.name, partitions, configs)
    if requested not in (None, partitions):
        log.warning(
            "%s was created with %d partitions, as the broker's settings say, not with %d", topic.name, partitions, requested
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


def _requested_partitions(state: BrokerState, wanted: create_topics_request.CreatableTopic) -> int | None:
    """Return the requested partition count, given as a number or by manual assignments; ``None`` for the broker's default."""
    if not wanted.assignments:
        if wanted.replication_factor not in (-1, 1):
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                f"Unable to replicate the partition {wanted.replication_factor} time(s): only 1 broker(s) are registered.",
            )
        return None if wanted.num_partitions == -1 else wanted.num_partitions
    if wanted.num_partitions != -1 or wanted.replication_factor != -1:
        raise ApiError(ErrorCode.invalid_request, "With manual assignments, the numbers of partitions and of replicas must be -1.")
    numbers = sorted(assignment.partition_index for assignment in wanted.assignments)
    placed = all(assignment.broker_ids == (state.catalog.node_id,) for assignment in wanted.assignments)
    if numbers != list(range(len(numbers))) or not placed:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Partitions must be numbered from 0 without gaps, each with one replica on broker {state.catalog.node_id}.",
        )
    return len(numbers)


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
    results: dict[str, create_partitions_response.CreatePartitionsTopicResult] = {}
    for number, wanted in enumerate(request.topics):
        if number and not number % SIZE:
            yield []
        code, message = ErrorCode.none, None
        try:
            if times[wanted.name] > 1:
                raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
            check_time_left(request.timeout)
            topic = state.catalog.topics.with_partitions(state.catalog.topic(wanted.name), wanted.count)
            _check_placement(state, wanted, topic.partition_count - state.catalog.topic(wanted.name).partition_count)
            if not request.validate_only:
                state.catalog.replace_topic(topic)
        except ApiError as api_error:
            code, message = api_error.code, api_error.message
        results[wanted.name] = create_partitions_response.CreatePartitionsTopicResult(
            name=wanted.name, error_code=code, error_message=message
        )
    response = create_partitions_response.CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=tuple(results.values()))
    return [Reply(context.ticket, response)]


def _check_placement(state: BrokerState, wanted: create_partitions_request.CreatePartitionsTopic, added: int) -> None:
    """Raise ``ApiError`` unless manual assignments place each new partition on this broker."""
    if wanted.assignments is None:
        return
    if len(wanted.assignments) != added:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {added} additional partition(s), but only {len(wanted.assignments)} assignment(s) were specified.",
        )
    if any(assignment.broker_ids != (state.catalog.node_id,) for assignment in wanted.assignments):
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Each new partition must have one replica, on broker {state.catalog.node_id}, the only one.",
        )


@serves(Api.DELETE_TOPICS)
def delete_topics(
    state: BrokerState, context: RequestContext, request: delete_topics_request.DeleteTopicsRequest, now: Now
) -> list[BrokerEffect]:
    """Delete each topic, named by name or by id."""
    return state.sliced_requests.begin(context, _delete_topics_slices(state, context, request), now)


def _delete_topics_slices(
    state: BrokerState, context: RequestContext, request: delete_topics_request.DeleteTopicsRequest
) -> Slices:
    results = []
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
            state.catalog.delete_topic(topic)
            in_slice += topic.partition_count - 1
        except ApiError as api_error:
            results.append(_result(wanted, api_error))
        else:
            results.append(
                delete_topics_response.DeletableTopicResult(
                    name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.none, error_message=None
                )
            )
    response = delete_topics_response.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))
    return [Reply(context.ticket, response)]


def _find(state: BrokerState, wanted: delete_topics_request.DeleteTopicState) -> Topic:
    if not state.catalog.config.delete_topic_enable:
        raise ApiError(ErrorCode.topic_deletion_disabled, "Topic deletion is disabled.")
    if (wanted.name is None) == (wanted.topic_id is None):
        raise ApiError(ErrorCode.invalid_request, "Name a topic by name or by id, not by both or neither.")
    topic = state.catalog.topic(wanted.name) if wanted.name is not None else state.catalog.topic_by_id(wanted.topic_id)
    if topic.internal:
        raise ApiError(ErrorCode.invalid_request, f"Topic '{topic.name}' belongs to the broker: groups and offsets are in it.")
    return topic


def _result(wanted: delete_topics_request.DeleteTopicState, api_error: ApiError) -> delete_topics_response.DeletableTopicResult:
    return delete_topics_response.DeletableTopicResult(
        name=wanted.name, topic_id=wanted.topic_id, error_code=api_error.code, error_message=api_error.message
    )
