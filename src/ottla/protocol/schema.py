"""Questions about the types of kio's message classes.

Owns how a field's annotation is read; must not know any message. Invariant: kio's classes and the merged ones of ``messages``
answer alike.
"""

from __future__ import annotations

import dataclasses
import types
import typing
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
