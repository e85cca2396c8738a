"""The topics, groups and transactional ids in a request.

Owns the reading of any neutral request by the names of its fields. Must not know an API. Invariant: nothing is written.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from typing import Any

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
