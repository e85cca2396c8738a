"""Questions about the types of kio's message classes.

Owns how a field's annotation is read; must not know any message. Invariant: kio's classes and the merged ones of ``messages``
answer alike.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

_F = TypeVar("_F")

if TYPE_CHECKING:

    def cache(function: _F) -> _F:
        """``functools.cache``, whose stub takes no classes as arguments."""
        return function
else:
    from functools import cache as cache


def nested_class(annotation: Any) -> type[Any] | None:
    """The message class inside an annotation such as ``tuple[Topic, ...] | None``, if there is one."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation
    for argument in typing.get_args(annotation):
        found = nested_class(argument)
        if found is not None:
            return found
    return None


def is_tuple(annotation: Any) -> bool:
    """Whether the field is an array, nullable or not."""
    if typing.get_origin(annotation) is tuple:
        return True
    return any(typing.get_origin(argument) is tuple for argument in typing.get_args(annotation))


def is_nullable(annotation: Any) -> bool:
    """Whether the field may be null."""
    return types.NoneType in typing.get_args(annotation)


@cache
def has_records(cls: type[Any]) -> bool:
    """Whether some field of a message holds record batches, which may stay in a file until they are sent."""
    fields = dataclasses.fields(cls)
    inner = [nested_class(field.type) for field in fields]
    return any(field.metadata.get("kafka_type") == "records" for field in fields) or any(map(has_records, filter(None, inner)))


_IMPLICIT: dict[str, object] = {
    "string": "",
    "bytes": b"",
    "uuid": None,
    "bool": False,
    "float64": 0.0,
    "timedelta_i32": timedelta(0),
    "records": None,
}
"""The protocol's defaults of field types for fields that a version lacks and the schema gives no default; numbers are 0."""


def implicit_default(field: dataclasses.Field[Any]) -> object:
    """What a field says in a version that lacks it, where the schema has no default of its own."""
    if is_tuple(field.type):
        return None if is_nullable(field.type) else ()
    if is_nullable(field.type):
        return None
    kind = field.metadata.get("kafka_type", "")
    if kind == "error_code":
        from kio.schema.errors import ErrorCode

        return ErrorCode.none
    return _IMPLICIT.get(kind, 0)
