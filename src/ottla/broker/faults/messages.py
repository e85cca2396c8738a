"""Requests and responses of any API, for scripted faults: the topics and groups in a request, and a response with an error.

Owns the reading of any neutral request by the names of its fields, and where each API carries errors. Must not know what an error
means. Invariants: no request is changed; each item of the request is in the response with the error, where clients look for it.

Nearly every response repeats the lists of its request in their order, with an error code beside each item, so the schema is
sufficient; the tables have the exceptions.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import message_class
from ottla.protocol.schema import cache, is_nullable, is_tuple, nested_class

NameOf = Callable[[uuid.UUID], str | None]
"""The topic of an id."""


def topics_in(message: Any, name_of: NameOf, *, inside: bool = False) -> Iterator[str]:
    """Yield the topics in a message. ``inside``: it is itself an item of a list of topics."""
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if inside and field.name in ("name", "topic", "topic_name") and value:
            yield value
        elif inside and field.name == "topic_id" and value is not None:
            yield name_of(value) or ""
        elif isinstance(value, tuple):
            among_topics = "topic" in field.name
            for item in value:
                if dataclasses.is_dataclass(item):
                    yield from topics_in(item, name_of, inside=among_topics)
                elif among_topics and isinstance(item, str):
                    yield item


def groups_in(message: Any) -> Iterator[str]:
    """Yield the groups in a message."""
    if getattr(message, "key_type", 0) == 0:
        yield from getattr(message, "coordinator_keys", ())
    group_id = getattr(message, "group_id", None)
    if isinstance(group_id, str):
        yield group_id
    for name in ("groups", "group_ids", "groups_names"):
        for item in getattr(message, name, None) or ():
            yield item if isinstance(item, str) else item.group_id


def transactional_ids_in(message: Any) -> Iterator[str]:
    """Yield the transactional ids in a message."""
    if getattr(message, "key_type", 0) == 1:
        yield from message.coordinator_keys
    for one in (message, *(getattr(message, "transactions", None) or ())):
        named = getattr(one, "transactional_id", None)
        if named is not None:
            yield named
    yield from getattr(message, "transactional_ids", ())


def lists_in(message: Any) -> list[str]:
    """Return the names of a message's list fields, in their order."""
    return [field.name for field in dataclasses.fields(message) if isinstance(getattr(message, field.name), tuple)]


def split_by_topic(message: Any, topic: str, name_of: NameOf) -> tuple[Any, Any | None]:
    """Split a request: the part about a topic, and the rest; ``None`` if there is no rest."""
    about = lists_in(message)[:1]
    items = getattr(message, about[0]) if about else ()
    if not all(map(dataclasses.is_dataclass, items)):
        return message, None
    wanted = tuple(item for item in items if topic in topics_in(item, name_of, inside="topic" in about[0]))
    rest = tuple(item for item in items if item not in wanted)
    if not rest or not wanted:
        return message, None
    return dataclasses.replace(message, **{about[0]: wanted}), dataclasses.replace(message, **{about[0]: rest})


ERROR_MESSAGE = "as set by broker.faults"
"""The message of such an error."""

_TOP_LEVEL_ERRORS = {
    Api.FETCH: frozenset(
        {
            ErrorCode.fetch_session_id_not_found,
            ErrorCode.invalid_fetch_session_epoch,
            ErrorCode.fetch_session_topic_id_error,
            ErrorCode.invalid_request,
        }
    ),
    Api.METADATA: frozenset({ErrorCode.rebootstrap_required}),
}
"""APIs whose items carry all errors but these, though there is a field for one at the top as well."""

_ALIASES = (frozenset({"partition", "partition_index", "index"}), frozenset({"name", "topic", "topic_name"}))
"""Different names of a field in a request and in its response."""


def error_response(api: Api, request: Any, error: ErrorCode) -> Any:
    """Return the response to a request that failed as a whole with ``error``."""
    top_level = _TOP_LEVEL_ERRORS.get(api)
    cls = message_class(api, "response")
    if top_level is None:
        return _mirrored(cls, request, error)
    if error in top_level:
        return _mirrored(cls, None, error)
    return dataclasses.replace(_mirrored(cls, request, error), error_code=ErrorCode.none)


def with_error(topics: frozenset[str], error: ErrorCode, metadata: Any) -> Any:
    """A Metadata response with an error for some topics (empty: for all). The brokers stay: clients need them."""
    return dataclasses.replace(
        metadata,
        topics=tuple(
            dataclasses.replace(topic, error_code=error, partitions=()) if not topics or topic.name in topics else topic
            for topic in metadata.topics
        ),
    )


def joined(more: Any, answer: Any) -> Any:
    """A response, with the items of another added."""
    name = next(field.name for field in dataclasses.fields(answer) if is_tuple(field.type) and carries_errors(field.type))
    return dataclasses.replace(answer, **{name: (*getattr(answer, name), *getattr(more, name))})


@cache
def carries_errors(annotation: Any) -> bool:
    """Whether a field has an error code at any depth."""
    inner = nested_class(annotation)
    return inner is not None and any(
        field.metadata.get("kafka_type") == "error_code" or carries_errors(field.type) for field in dataclasses.fields(inner)
    )


def _mirrored(cls: type[Any], source: Any, error: ErrorCode) -> Any:
    """Return an instance of ``cls`` for a message of the request, an item of a list, a string or a number."""
    names = iter(lists_in(source) if dataclasses.is_dataclass(source) else ())
    filled = _filled_by(cls, source)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        kind = field.metadata.get("kafka_type", "")
        inner = nested_class(field.type)
        if kind == "error_code":
            values[field.name] = error
        elif field.name == "error_message":
            values[field.name] = ERROR_MESSAGE
        elif field.name == filled:
            values[field.name] = source
        elif is_tuple(field.type) and inner is not None and carries_errors(field.type):
            items = getattr(source, next(names, ""), ())
            values[field.name] = tuple(_mirrored(inner, item, error) for item in items)
        elif (found := _same(field, source)) is not None:
            values[field.name] = found
        elif field.default is dataclasses.MISSING:
            values[field.name] = _nothing(field)
    return cls(**values)


def _same(field: dataclasses.Field[Any], source: Any) -> Any:
    """Return the value in an item of the request for a field of the response, by its name or another name of it."""
    if not dataclasses.is_dataclass(source):
        return None
    kind = field.metadata.get("kafka_type")
    theirs = {one.name: one for one in dataclasses.fields(source) if one.metadata.get("kafka_type") == kind}
    names = next((aliases for aliases in _ALIASES if field.name in aliases), frozenset({field.name}))
    name = next((one for one in theirs if one in names), None)
    return None if name is None or is_tuple(theirs[name].type) else getattr(source, name)


def _filled_by(cls: type[Any], source: Any) -> str:
    """Return the field for a plain string or number of the request: the first of that type."""
    kind = {str: "string", int: "int32"}.get(type(source), "neither")
    fields = (field.name for field in dataclasses.fields(cls) if field.metadata.get("kafka_type") == kind)
    return next((name for name in fields if name != "error_message"), "")


def _nothing(field: dataclasses.Field[Any]) -> Any:
    """Return an empty value of a field."""
    kind = field.metadata.get("kafka_type", "")
    if is_tuple(field.type):
        return None if is_nullable(field.type) else ()
    if kind == "uuid" or (is_nullable(field.type) and kind != "records"):
        return None
    return _LEAST.get(kind, -1)


_LEAST: dict[str, Any] = {
    "datetime_i64": datetime.fromtimestamp(0, UTC),
    "records": b"",
    "string": "",
    "bytes": b"",
    "bool": False,
    "timedelta_i32": NO_THROTTLE,
    "timedelta_i64": NO_THROTTLE,
}
