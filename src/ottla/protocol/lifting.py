"""Between a message of any version and its neutral shape: ``lift`` on the way in, ``lower`` on the way out.

Owns the conversion of whole message trees, field by field, and the few bodies that changed shape between versions. Must not know
what a message means. Invariant: ``lift(lower(message, v))`` equals ``message`` in all fields that version ``v`` has; a field that a
version lacks gets the protocol's default on lifting and is left out on lowering.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.messages import classes_of, kio_module, load, message_class
from ottla.protocol.schema import cache, is_nullable, is_tuple, nested_class

_IMPLICIT: dict[str, object] = {
    "string": "",
    "bytes": b"",
    "uuid": None,
    "bool": False,
    "float64": 0.0,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "records": None,
}
"""The protocol's defaults of field types for fields that a version lacks and the schema gives no default; numbers are 0."""

Convert = Callable[[Any], Any]


@cache
def wire_class(api: Api, version: int, side: str) -> type[Any]:
    """kio's class of a whole message in one version."""
    return list(classes_of(kio_module(api.name.lower(), version, side)).values())[-1]


def lift(api: Api, side: str, message: Any) -> Any:
    """The neutral form of a message that kio decoded."""
    reshape = _RESHAPE_IN.get((api, side))
    if reshape is not None and message.__version__ < reshape[0]:
        return reshape[1](message)
    return converter(type(message), message_class(api, side))(message)


def lower(api: Api, version: int, side: str, message: Any) -> Any:
    """kio's form of a neutral message in one version."""
    reshape = _RESHAPE_OUT.get((api, side))
    if reshape is not None and version < reshape[0]:
        return reshape[1](message, wire_class(api, version, side))
    return converter(type(message), wire_class(api, version, side))(message)


@cache
def converter(source: type[Any], target: type[Any]) -> Convert:
    """A function that makes a ``target`` of a ``source``: fields of the same name are kept, others left out or defaulted."""
    if source is target:
        return lambda message: message
    theirs = {field.name: field for field in dataclasses.fields(source)}
    copied: list[tuple[str, Convert | None]] = []
    defaults: dict[str, object] = {}
    for field in dataclasses.fields(target):
        if field.name in theirs:
            copied.append((field.name, _field_converter(theirs[field.name].type, field)))
        elif field.default is dataclasses.MISSING:
            defaults[field.name] = _implicit_default(field)

    def convert(message: Any) -> Any:
        values = {name: getattr(message, name) if change is None else change(getattr(message, name)) for name, change in copied}
        return target(**defaults, **values)

    return convert


def _field_converter(source: Any, field: dataclasses.Field[Any]) -> Convert | None:
    target = field.type
    inner_source, inner_target = nested_class(source), nested_class(target)
    change: Convert | None = None
    if inner_source is not None and inner_target is not None and inner_source is not inner_target:
        one = converter(inner_source, inner_target)
        change = _for_tuples(one) if is_tuple(target) else _unless_none(one)
    if is_nullable(source) and not is_nullable(target):
        empty = () if is_tuple(target) else _IMPLICIT.get(field.metadata.get("kafka_type", ""), 0)
        return _or_else(change, empty)
    return change


def _for_tuples(one: Convert) -> Convert:
    return lambda items: None if items is None else tuple([one(item) for item in items])


def _unless_none(one: Convert) -> Convert:
    return lambda item: None if item is None else one(item)


def _or_else(change: Convert | None, empty: object) -> Convert:
    return lambda value: empty if value is None else value if change is None else change(value)


def _implicit_default(field: dataclasses.Field[Any]) -> object:
    if is_tuple(field.type):
        return None if is_nullable(field.type) else ()
    if is_nullable(field.type):
        return None
    kind = field.metadata.get("kafka_type", "")
    if kind == "error_code":
        from kio.schema.errors import ErrorCode

        return ErrorCode.none
    return _IMPLICIT.get(kind, 0)


# Bodies that changed shape: once a single item at the top, later a list.


def _lift_find_coordinator_request(message: Any) -> Any:
    target = message_class(Api.FIND_COORDINATOR, "request")
    return target(key_type=getattr(message, "key_type", 0), coordinator_keys=(message.key,))


def _lower_find_coordinator_request(message: Any, target: type[Any]) -> Any:
    (key,) = message.coordinator_keys
    return _make(target, key=key, key_type=message.key_type)


def _lift_find_coordinator_response(message: Any) -> Any:
    classes = load(Api.FIND_COORDINATOR, "response")
    only = classes["Coordinator"](
        key="",
        node_id=message.node_id,
        host=message.host,
        port=message.port,
        error_code=message.error_code,
        error_message=getattr(message, "error_message", None),
    )
    throttle = getattr(message, "throttle_time", timedelta(0))
    return classes["FindCoordinatorResponse"](throttle_time=throttle, coordinators=(only,))


def _lower_find_coordinator_response(message: Any, target: type[Any]) -> Any:
    (only,) = message.coordinators
    values = {field.name: getattr(only, field.name) for field in dataclasses.fields(only)}
    return _make(target, throttle_time=message.throttle_time, **values)


def _lift_offset_fetch_request(message: Any) -> Any:
    classes = load(Api.OFFSET_FETCH, "request")
    topics = converter_of_tuple(message.topics, classes["OffsetFetchRequestTopics"])
    group = classes["OffsetFetchRequestGroup"](group_id=message.group_id, topics=topics)
    return classes["OffsetFetchRequest"](groups=(group,), require_stable=getattr(message, "require_stable", False))


def _lower_offset_fetch_request(message: Any, target: type[Any]) -> Any:
    (group,) = message.groups
    topics = converter_of_tuple(group.topics, _nested_field(target, "topics"))
    return _make(target, group_id=group.group_id, topics=topics, require_stable=message.require_stable)


def _lift_offset_fetch_response(message: Any) -> Any:
    classes = load(Api.OFFSET_FETCH, "response")
    topics = converter_of_tuple(message.topics, classes["OffsetFetchResponseTopics"])
    code = getattr(message, "error_code", _implicit_error())
    group = classes["OffsetFetchResponseGroup"](group_id="", topics=topics, error_code=code)
    throttle = getattr(message, "throttle_time", timedelta(0))
    return classes["OffsetFetchResponse"](throttle_time=throttle, groups=(group,))


def _lower_offset_fetch_response(message: Any, target: type[Any]) -> Any:
    (group,) = message.groups
    topics = converter_of_tuple(group.topics, _nested_field(target, "topics"))
    return _make(target, throttle_time=message.throttle_time, topics=topics, error_code=group.error_code)


def _lift_leave_group_request(message: Any) -> Any:
    classes = load(Api.LEAVE_GROUP, "request")
    member = classes["MemberIdentity"](member_id=message.member_id)
    return classes["LeaveGroupRequest"](group_id=message.group_id, members=(member,))


def _lower_leave_group_request(message: Any, target: type[Any]) -> Any:
    (member,) = message.members
    return _make(target, group_id=message.group_id, member_id=member.member_id)


def _lower_leave_group_response(message: Any, target: type[Any]) -> Any:
    """Before the list of members there was one error: that of the group, else that of the only member."""
    code = message.error_code
    if not code and message.members:
        code = message.members[0].error_code
    return _make(target, throttle_time=message.throttle_time, error_code=code)


def _lift_delete_topics_request(message: Any) -> Any:
    classes = load(Api.DELETE_TOPICS, "request")
    topics = tuple(classes["DeleteTopicState"](name=name, topic_id=None) for name in message.topic_names)
    return classes["DeleteTopicsRequest"](topics=topics, timeout=message.timeout)


def _lower_delete_topics_request(message: Any, target: type[Any]) -> Any:
    return _make(target, topic_names=tuple(topic.name for topic in message.topics), timeout=message.timeout)


def _lift_join_group_request(message: Any) -> Any:
    """Version 0 had one timeout for both purposes (KIP-62 split them)."""
    lifted = converter(type(message), message_class(Api.JOIN_GROUP, "request"))(message)
    return dataclasses.replace(lifted, rebalance_timeout=message.session_timeout)


def _lift_metadata_request(message: Any) -> Any:
    """Version 0 had no null: an empty list asked for all topics."""
    lifted = converter(type(message), message_class(Api.METADATA, "request"))(message)
    return lifted if message.topics else dataclasses.replace(lifted, topics=None)


def _implicit_error() -> object:
    from kio.schema.errors import ErrorCode

    return ErrorCode.none


def converter_of_tuple(items: Any, target: type[Any] | None) -> Any:
    """Each item in the shape of ``target``; ``None`` stays ``None``."""
    if items is None or target is None:
        return None
    return tuple(converter(type(item), target)(item) for item in items)


def _nested_field(target: type[Any], name: str) -> type[Any] | None:
    return next(nested_class(field.type) for field in dataclasses.fields(target) if field.name == name)


def _make(target: type[Any], **values: Any) -> Any:
    known = {field.name for field in dataclasses.fields(target)}
    return target(**{name: value for name, value in values.items() if name in known})


_RESHAPE_IN: dict[tuple[Api, str], tuple[int, Callable[[Any], Any]]] = {
    (Api.FIND_COORDINATOR, "request"): (4, _lift_find_coordinator_request),
    (Api.FIND_COORDINATOR, "response"): (4, _lift_find_coordinator_response),
    (Api.OFFSET_FETCH, "request"): (8, _lift_offset_fetch_request),
    (Api.OFFSET_FETCH, "response"): (8, _lift_offset_fetch_response),
    (Api.LEAVE_GROUP, "request"): (3, _lift_leave_group_request),
    (Api.DELETE_TOPICS, "request"): (6, _lift_delete_topics_request),
    (Api.JOIN_GROUP, "request"): (1, _lift_join_group_request),
    (Api.METADATA, "request"): (1, _lift_metadata_request),
}
"""(API, side) -> (the first version of today's shape, how to lift an older one)."""

_RESHAPE_OUT: dict[tuple[Api, str], tuple[int, Callable[[Any, type[Any]], Any]]] = {
    (Api.FIND_COORDINATOR, "request"): (4, _lower_find_coordinator_request),
    (Api.FIND_COORDINATOR, "response"): (4, _lower_find_coordinator_response),
    (Api.OFFSET_FETCH, "request"): (8, _lower_offset_fetch_request),
    (Api.OFFSET_FETCH, "response"): (8, _lower_offset_fetch_response),
    (Api.LEAVE_GROUP, "request"): (3, _lower_leave_group_request),
    (Api.LEAVE_GROUP, "response"): (3, _lower_leave_group_response),
    (Api.DELETE_TOPICS, "request"): (6, _lower_delete_topics_request),
}

assert {api for api, _ in (*_RESHAPE_IN, *_RESHAPE_OUT)} <= set(SPOKEN)
