"""Converts messages between kio's class of a version and the neutral class: upgraded when decoded, downgraded when encoded.

Owns the conversion of whole messages, field by field, and of the few bodies whose structure changed between versions. Must not
know the meaning of a message. Invariant: a message that is downgraded and upgraded again keeps all fields that the version has.
Upgrading gives the protocol's default to a field that the version lacks; downgrading drops it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.messages import classes_of, kio_module, load, message_class
from ottla.protocol.schema import cache, implicit_default, is_nullable, is_tuple, nested_class

Convert = Callable[[Any], Any]


@cache
def wire_class(api: Api, version: int, side: str) -> type[Any]:
    """kio's class of a message in one version."""
    return list(classes_of(kio_module(api.name.lower(), version, side)).values())[-1]


@cache
def upgrader(api: Api, side: str, wire: type[Any]) -> Convert | None:
    """The function that makes neutral messages of those of kio's class ``wire``; ``None`` if ``wire`` is the neutral class.

    The function may reuse the message it gets, which must not be used afterwards.
    """
    reshape = _UPGRADES.get((api, side))
    if reshape is not None and wire.__version__ < reshape[0]:
        return reshape[1]
    neutral = message_class(api, side)
    return None if wire is neutral else adopter(wire, neutral)


def downgrader(api: Api, version: int, side: str) -> Convert | None:
    """The function that makes kio's message of a neutral one if the body had another structure in this version, or ``None``."""
    reshape = _DOWNGRADES.get((api, side))
    if reshape is None or version >= reshape[0]:
        return None
    target = wire_class(api, version, side)
    return lambda message: reshape[1](message, target)


@cache
def converter(source: type[Any], target: type[Any]) -> Convert:
    """A function that makes a ``target`` of a ``source``: it keeps fields of the same name; others are dropped or get defaults."""
    return (lambda message: message) if source is target else _copying(source, target, converter)


@cache
def adopter(source: type[Any], target: type[Any]) -> Convert:
    """The same for messages that no other code refers to: if both classes have the same fields, only the class is replaced."""
    if source is target:
        return lambda message: message
    if not _same_fields(source, target):
        return _copying(source, target, adopter)

    def adopt(message: Any) -> Any:
        set_attribute(message, "__class__", target)
        return message

    set_attribute = object.__setattr__
    return adopt


def _same_fields(source: type[Any], target: type[Any]) -> bool:
    """Whether both classes have the same slots with values of the same types."""
    if source.__slots__ != target.__slots__ or source.__bases__ != target.__bases__:
        return False
    source_fields = {field.name: field for field in dataclasses.fields(source)}
    return all(_field_converter(source_fields[field.name].type, field, adopter) is None for field in dataclasses.fields(target))


def _copying(source: type[Any], target: type[Any], inner: Callable[[type[Any], type[Any]], Convert]) -> Convert:
    """A function generated for two classes. It sets the slots: the constructor of a frozen class takes longer than all the rest."""
    source_fields = {field.name: field for field in dataclasses.fields(source)}
    names: dict[str, Any] = {"new": object.__new__, "target": target}
    lines = []
    operand: Any
    for number, field in enumerate(dataclasses.fields(target)):
        names[f"set_{number}"] = getattr(target, field.name).__set__
        value, operand = f"message.{field.name}", None
        if field.name not in source_fields:
            value = f"operand_{number}"
            operand = implicit_default(field) if field.default is dataclasses.MISSING else field.default
        elif (change := _field_converter(source_fields[field.name].type, field, inner)) is not None:
            value, operand = f"operand_{number}({value})", change
        names[f"operand_{number}"] = operand
        lines.append(f"    set_{number}(converted, {value})")
    text = "\n".join(["def convert(message):", "    converted = new(target)", *lines, "    return converted"])
    exec(compile(text, f"<{target.__qualname__} of {source.__qualname__}>", "exec"), names)
    convert: Convert = names["convert"]
    return convert


def _field_converter(
    source: Any, field: dataclasses.Field[Any], inner: Callable[[type[Any], type[Any]], Convert]
) -> Convert | None:
    target = field.type
    inner_source, inner_target = nested_class(source), nested_class(target)
    change: Convert | None = None
    if inner_source is not None and inner_target is not None and inner_source is not inner_target:
        # kio shares the default of a single structure between messages, so it is copied: only items of arrays can be adopted.
        change = (
            _for_tuples(inner(inner_source, inner_target))
            if is_tuple(target)
            else _unless_none(converter(inner_source, inner_target))
        )
    if is_nullable(source) and not is_nullable(target):
        return _or_else(change, implicit_default(field))
    return change


def _for_tuples(convert_item: Convert) -> Convert:
    return lambda items: None if items is None else tuple([convert_item(item) for item in items])


def _unless_none(convert_item: Convert) -> Convert:
    return lambda item: None if item is None else convert_item(item)


def _or_else(change: Convert | None, default: object) -> Convert:
    return lambda value: default if value is None else value if change is None else change(value)


# Bodies whose structure changed: most had the fields of a single item, and later a list of items.


def _upgrade_find_coordinator_request(message: Any) -> Any:
    target = message_class(Api.FIND_COORDINATOR, "request")
    return target(key_type=getattr(message, "key_type", 0), coordinator_keys=(message.key,))


def _downgrade_find_coordinator_request(message: Any, target: type[Any]) -> Any:
    (key,) = message.coordinator_keys
    return _make(target, key=key, key_type=message.key_type)


def _upgrade_find_coordinator_response(message: Any) -> Any:
    classes = load(Api.FIND_COORDINATOR, "response")
    coordinator = classes["Coordinator"](
        key="",
        node_id=message.node_id,
        host=message.host,
        port=message.port,
        error_code=message.error_code,
        error_message=getattr(message, "error_message", None),
    )
    throttle = getattr(message, "throttle_time", timedelta(0))
    return classes["FindCoordinatorResponse"](throttle_time=throttle, coordinators=(coordinator,))


def _downgrade_find_coordinator_response(message: Any, target: type[Any]) -> Any:
    (coordinator,) = message.coordinators
    values = {field.name: getattr(coordinator, field.name) for field in dataclasses.fields(coordinator)}
    return _make(target, throttle_time=message.throttle_time, **values)


def _upgrade_offset_fetch_request(message: Any) -> Any:
    classes = load(Api.OFFSET_FETCH, "request")
    topics = convert_all(message.topics, classes["OffsetFetchRequestTopics"])
    group = classes["OffsetFetchRequestGroup"](group_id=message.group_id, topics=topics)
    return classes["OffsetFetchRequest"](groups=(group,), require_stable=getattr(message, "require_stable", False))


def _downgrade_offset_fetch_request(message: Any, target: type[Any]) -> Any:
    (group,) = message.groups
    topics = convert_all(group.topics, _nested_field(target, "topics"))
    return _make(target, group_id=group.group_id, topics=topics, require_stable=message.require_stable)


def _upgrade_offset_fetch_response(message: Any) -> Any:
    classes = load(Api.OFFSET_FETCH, "response")
    topics = convert_all(message.topics, classes["OffsetFetchResponseTopics"])
    code = getattr(message, "error_code", _implicit_error())
    group = classes["OffsetFetchResponseGroup"](group_id="", topics=topics, error_code=code)
    throttle = getattr(message, "throttle_time", timedelta(0))
    return classes["OffsetFetchResponse"](throttle_time=throttle, groups=(group,))


def _downgrade_offset_fetch_response(message: Any, target: type[Any]) -> Any:
    (group,) = message.groups
    topics = convert_all(group.topics, _nested_field(target, "topics"))
    return _make(target, throttle_time=message.throttle_time, topics=topics, error_code=group.error_code)


def _upgrade_leave_group_request(message: Any) -> Any:
    classes = load(Api.LEAVE_GROUP, "request")
    member = classes["MemberIdentity"](member_id=message.member_id)
    return classes["LeaveGroupRequest"](group_id=message.group_id, members=(member,))


def _downgrade_leave_group_request(message: Any, target: type[Any]) -> Any:
    (member,) = message.members
    return _make(target, group_id=message.group_id, member_id=member.member_id)


def _downgrade_leave_group_response(message: Any, target: type[Any]) -> Any:
    """The version has one error code: that of the group, or else that of its first member."""
    code = message.error_code
    if not code and message.members:
        code = message.members[0].error_code
    return _make(target, throttle_time=message.throttle_time, error_code=code)


def _upgrade_delete_topics_request(message: Any) -> Any:
    classes = load(Api.DELETE_TOPICS, "request")
    topics = tuple(classes["DeleteTopicState"](name=name, topic_id=None) for name in message.topic_names)
    return classes["DeleteTopicsRequest"](topics=topics, timeout=message.timeout)


def _downgrade_delete_topics_request(message: Any, target: type[Any]) -> Any:
    return _make(target, topic_names=tuple(topic.name for topic in message.topics), timeout=message.timeout)


def _upgrade_join_group_request(message: Any) -> Any:
    """Version 0 has no rebalance timeout: the session timeout serves as both (KIP-62)."""
    upgraded = converter(type(message), message_class(Api.JOIN_GROUP, "request"))(message)
    return dataclasses.replace(upgraded, rebalance_timeout=message.session_timeout)


def _upgrade_metadata_request(message: Any) -> Any:
    """Version 0 has no null: an empty list asks for all topics."""
    upgraded = converter(type(message), message_class(Api.METADATA, "request"))(message)
    return upgraded if message.topics else dataclasses.replace(upgraded, topics=None)


def _upgrade_add_partitions_to_txn_request(message: Any) -> Any:
    classes = load(Api.ADD_PARTITIONS_TO_TXN, "request")
    transaction = classes["AddPartitionsToTxnTransaction"](
        transactional_id=message.v3_and_below_transactional_id,
        producer_id=message.v3_and_below_producer_id,
        producer_epoch=message.v3_and_below_producer_epoch,
        verify_only=False,
        topics=convert_all(message.v3_and_below_topics, classes["AddPartitionsToTxnTopic"]),
    )
    return classes["AddPartitionsToTxnRequest"](transactions=(transaction,))


def _downgrade_add_partitions_to_txn_request(message: Any, target: type[Any]) -> Any:
    (transaction,) = message.transactions
    return _make(
        target,
        v3_and_below_transactional_id=transaction.transactional_id,
        v3_and_below_producer_id=transaction.producer_id,
        v3_and_below_producer_epoch=transaction.producer_epoch,
        v3_and_below_topics=convert_all(transaction.topics, _nested_field(target, "v3_and_below_topics")),
    )


def _upgrade_add_partitions_to_txn_response(message: Any) -> Any:
    classes = load(Api.ADD_PARTITIONS_TO_TXN, "response")
    topics = tuple(
        classes["AddPartitionsToTxnTopicResult"](
            name=topic.name,
            results_by_partition=convert_all(topic.results_by_partition, classes["AddPartitionsToTxnPartitionResult"]),
        )
        for topic in message.results_by_topic_v3_and_below
    )
    result = classes["AddPartitionsToTxnResult"](transactional_id="", topic_results=topics)
    return classes["AddPartitionsToTxnResponse"](
        throttle_time=message.throttle_time, error_code=_implicit_error(), results_by_transaction=(result,)
    )


def _downgrade_add_partitions_to_txn_response(message: Any, target: type[Any]) -> Any:
    (result,) = message.results_by_transaction
    topics = convert_all(result.topic_results, _nested_field(target, "results_by_topic_v3_and_below"))
    return _make(target, throttle_time=message.throttle_time, results_by_topic_v3_and_below=topics)


def _implicit_error() -> object:
    from kio.schema.errors import ErrorCode

    return ErrorCode.none


def convert_all(items: Any, target: type[Any] | None) -> Any:
    """Each item as a ``target``; ``None`` stays ``None``."""
    if items is None or target is None:
        return None
    return tuple(converter(type(item), target)(item) for item in items)


def _nested_field(target: type[Any], name: str) -> type[Any] | None:
    return next(nested_class(field.type) for field in dataclasses.fields(target) if field.name == name)


def _make(target: type[Any], **values: Any) -> Any:
    names = {field.name for field in dataclasses.fields(target)}
    return target(**{name: value for name, value in values.items() if name in names})


_UPGRADES: dict[tuple[Api, str], tuple[int, Callable[[Any], Any]]] = {
    (Api.FIND_COORDINATOR, "request"): (4, _upgrade_find_coordinator_request),
    (Api.FIND_COORDINATOR, "response"): (4, _upgrade_find_coordinator_response),
    (Api.OFFSET_FETCH, "request"): (8, _upgrade_offset_fetch_request),
    (Api.OFFSET_FETCH, "response"): (8, _upgrade_offset_fetch_response),
    (Api.LEAVE_GROUP, "request"): (3, _upgrade_leave_group_request),
    (Api.DELETE_TOPICS, "request"): (6, _upgrade_delete_topics_request),
    (Api.ADD_PARTITIONS_TO_TXN, "request"): (4, _upgrade_add_partitions_to_txn_request),
    (Api.ADD_PARTITIONS_TO_TXN, "response"): (4, _upgrade_add_partitions_to_txn_response),
    (Api.JOIN_GROUP, "request"): (1, _upgrade_join_group_request),
    (Api.METADATA, "request"): (1, _upgrade_metadata_request),
}
"""(API, side) -> (the first version with the neutral structure, the upgrade of older ones)."""

_DOWNGRADES: dict[tuple[Api, str], tuple[int, Callable[[Any, type[Any]], Any]]] = {
    (Api.FIND_COORDINATOR, "request"): (4, _downgrade_find_coordinator_request),
    (Api.FIND_COORDINATOR, "response"): (4, _downgrade_find_coordinator_response),
    (Api.OFFSET_FETCH, "request"): (8, _downgrade_offset_fetch_request),
    (Api.OFFSET_FETCH, "response"): (8, _downgrade_offset_fetch_response),
    (Api.LEAVE_GROUP, "request"): (3, _downgrade_leave_group_request),
    (Api.LEAVE_GROUP, "response"): (3, _downgrade_leave_group_response),
    (Api.DELETE_TOPICS, "request"): (6, _downgrade_delete_topics_request),
    (Api.ADD_PARTITIONS_TO_TXN, "request"): (4, _downgrade_add_partitions_to_txn_request),
    (Api.ADD_PARTITIONS_TO_TXN, "response"): (4, _downgrade_add_partitions_to_txn_response),
}

assert {api for api, _ in (*_UPGRADES, *_DOWNGRADES)} <= set(SPOKEN)
