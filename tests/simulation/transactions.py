"""Transactions in the simulator's world: responses as other brokers and coordinators send them, and what is read of a transaction.

Owns the changes of responses, and the reading of a log as a consumer of committed records. Must not know what is tested.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from ottla.broker.markers import read_marker
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_fetch_request
from ottla.records import ControlType, iter_records
from ottla.records.header import LENGTH_OVERHEAD, iter_headers
from ottla.simulation.world import World
from ottla.types import TopicPartition


def with_version_1(response: Any) -> Any:
    """A response to ApiVersions of a cluster that has version 1 of transactions."""
    features = tuple(one for one in response.finalized_features if one.name != "transaction.version")
    return dataclasses.replace(response, finalized_features=features)


def refused(response: Any, code: ErrorCode) -> Any:
    """A response with another code, wherever it has one that says that all is well."""
    if isinstance(response, tuple):
        return tuple(refused(item, code) for item in response)
    if not dataclasses.is_dataclass(response):
        return response
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(response):
        value = getattr(response, field.name)
        if isinstance(value, ErrorCode):
            changes[field.name] = code if value == ErrorCode.none else value
        elif isinstance(value, tuple) or dataclasses.is_dataclass(value):
            changes[field.name] = refused(value, code)
    return dataclasses.replace(cast(Any, response), **changes)


def committed_values(world: World, partition: int, topic: str = "t") -> list[str]:
    """What consumers of committed records read of a partition, in order. Fails if a transaction is open."""
    log = world.broker.core.catalog.log(topic, partition)
    assert log.last_stable_offset == log.end_offset, "a transaction is open"
    data = bytes(cast(bytes, log.read(log.start_offset, 1 << 30, at_least_one=True) or b""))
    kept: list[tuple[int, str]] = []
    open_ones: dict[int, list[tuple[int, str]]] = {}
    for position, header in iter_headers(data):
        batch = data[position : position + LENGTH_OVERHEAD + header.batch_length]
        records = open_ones.setdefault(header.producer_id, [])
        if header.is_control:
            marker = read_marker(batch)
            assert marker is not None
            kept += records if marker.kind is ControlType.COMMIT else []
            records.clear()
        else:
            assert header.is_transactional
            records += [(record.offset, bytes(record.value or b"").decode()) for record in iter_records(batch)]
    assert not any(open_ones.values())
    return [value for _, value in sorted(kept)]


def has_stable_offset(world: World, group: str, tp: TopicPartition) -> bool:
    """Whether no transaction that is open has an offset of the group."""
    topic_id = world.broker.core.catalog.topic(tp.topic).topic_id
    topic = offset_fetch_request.OffsetFetchRequestTopics(name=tp.topic, topic_id=topic_id, partition_indexes=(tp.partition,))
    asked = offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=(topic,))
    answer = world.broker.ask(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=(asked,), require_stable=True))
    return not answer.groups[0].error_code and not answer.groups[0].topics[0].partitions[0].error_code
