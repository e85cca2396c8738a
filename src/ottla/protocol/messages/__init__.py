"""The neutral classes of the messages: kio's newest class of each message, loaded when it is first used.

``from ottla.protocol.messages import join_group_request`` imports a module with ``JoinGroupRequest`` and its nested classes. The
classes are created on first use, because creating all of them takes longer than starting a broker.

Owns the choice of the neutral class. Must not know sockets or cores. Invariant: a neutral class has every field that is used in any
supported version. For the few APIs whose newest version lacks such a field (``MERGED``) several versions are merged.

64-bit durations and times are whole milliseconds here, with Kafka's names: ``timedelta`` and ``datetime``, which kio uses for them,
have a smaller range than 64 bits, and a peer may send any number.

``tools/make_message_stubs.py`` writes the ``.pyi`` files in this folder from the same classes (a test checks that they are
current). They declare kio's bounded integers as ``int`` and its durations of 32 bits as ``timedelta``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import operator
import types
import typing
from datetime import timedelta
from functools import cache
from typing import Any

from ottla.protocol.apis import MERGED, SPOKEN, Api

_OPERATIONS = ("include_cluster_authorized_operations", "cluster_authorized_operations")
_DROPPED = ("name", "topic", "retention_time_ms", *_OPERATIONS)
"""Fields that the newest versions lack: the name of a topic, the retention time of a committed offset, and the authorized
operations of the cluster, which DescribeCluster has since."""

_OWN = {
    (api, version, side): f"ottla.protocol.own.{api}_{side}"
    for api, version in (
        ("consumer_group_heartbeat", 1),
        ("consumer_group_prepare_assignment", 0),
        ("consumer_group_install_assignment", 0),
        ("consult", 0),
        ("register", 0),
        ("leave", 0),
        ("ping", 0),
        ("stop", 0),
        ("start", 0),
    )
    for side in ("request", "response")
} | {
    ("describe_groups", 6, "response"): "ottla.protocol.own.describe_groups_response",
    ("list_groups", 5, "response"): "ottla.protocol.own.list_groups_response",
}
"""Ottla's own messages, declared as kio's are, and messages of Kafka's with additional fields."""


class _LazyModule(types.ModuleType):
    """A module that creates its classes at the first access to an attribute."""

    def __init__(self, name: str, api: Api, side: str) -> None:
        super().__init__(name)
        self._api, self._side = api, side

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__.update(load(self._api, self._side))
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"{self.__name__} has no message {name!r}") from None


def kio_module(api_name: str, version: int, side: str) -> types.ModuleType:
    """The module, kio's or Ottla's, of one version of a message; ``side`` is "request" or "response"."""
    own = _OWN.get((api_name, version, side))
    return importlib.import_module(own or f"kio.schema.{api_name}.v{version}.{side}")


@cache
def classes_of(module: types.ModuleType) -> dict[str, type[Any]]:
    """The message classes that a kio module defines, by name, nested ones first."""
    classes: dict[str, type[Any]] = {}
    replaced: dict[str, type[Any]] = {}
    for name, value in vars(module).items():
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__:
            classes[name] = _in_milliseconds(value, replaced)
    return classes


_LONG_TIMES = ("timedelta_i64", "datetime_i64")
_CLASS_ATTRIBUTES = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")


def _in_milliseconds(cls: type[Any], replaced: dict[str, type[Any]]) -> type[Any]:
    """kio's class with integers for 64-bit times; the same class if neither it nor its nested classes, already in ``replaced``,
    have any."""
    fields = [_in_whole_milliseconds(field, replaced) for field in dataclasses.fields(cls)]
    if [annotation for _, annotation, _ in fields] == [field.type for field in dataclasses.fields(cls)]:
        return cls
    namespace = {name: getattr(cls, name) for name in _CLASS_ATTRIBUTES if hasattr(cls, name)}
    copy = dataclasses.make_dataclass(cls.__name__, fields, namespace=namespace, frozen=True, slots=True, kw_only=True)
    copy.__doc__ = cls.__doc__
    replaced[cls.__name__] = copy
    return copy


def _in_whole_milliseconds(field: dataclasses.Field[Any], replaced: dict[str, type[Any]]) -> tuple[str, Any, Any]:
    if field.metadata.get("kafka_type") not in _LONG_TIMES:
        return field.name, _merged_type(field.type, replaced), _same_field(field)
    from kio.static.primitive import i64

    metadata = {**field.metadata, "kafka_type": "int64"}
    if field.default is dataclasses.MISSING:
        return f"{field.name}_ms", i64, dataclasses.field(metadata=metadata)
    default = -1 if field.default is None else field.default // timedelta(milliseconds=1)
    return f"{field.name}_ms", i64, dataclasses.field(default=i64(default), metadata=metadata)


@cache
def load(api: Api, side: str) -> dict[str, type[Any]]:
    """The classes of one neutral message, by name; the outermost is the last."""
    name = api.name.lower()
    newest = classes_of(kio_module(name, SPOKEN[api].maximum, side))
    if name not in MERGED:
        return newest
    older = [classes_of(kio_module(name, version, side)) for version in MERGED[name]]
    merged: dict[str, type[Any]] = {}
    for class_name, new in newest.items():
        merged[class_name] = _merge(new, [classes[class_name] for classes in older if class_name in classes], merged)
    return merged


def _merge(new: type[Any], older: list[type[Any]], merged: dict[str, type[Any]]) -> type[Any]:
    """A class with the fields of ``new`` and those of ``older`` that it lacks; nested classes are replaced by merged ones."""
    kept = {field.name: field for field in dataclasses.fields(new)}
    for old in older:
        kept.update({field.name: field for field in dataclasses.fields(old) if field.name not in kept and field.name in _DROPPED})
    fields = [(field.name, _merged_type(field.type, merged), _merged_field(field)) for field in kept.values()]
    result = dataclasses.make_dataclass(new.__name__, fields, frozen=True, slots=True, kw_only=True)
    result.__doc__ = new.__doc__
    return result


def _same_field(field: dataclasses.Field[Any]) -> Any:
    if field.default is dataclasses.MISSING:
        return dataclasses.field(metadata=field.metadata)
    return dataclasses.field(default=field.default, metadata=field.metadata)


def _merged_field(field: dataclasses.Field[Any]) -> Any:
    """A copy of the field. The name and the id of a topic are optional: one of the two is enough."""
    kind = field.metadata.get("kafka_type")
    if field.default is not dataclasses.MISSING:
        return _same_field(field)
    if field.name in ("name", "topic"):
        return dataclasses.field(default="", metadata=field.metadata)
    if field.name == _OPERATIONS[0]:
        return dataclasses.field(default=False, metadata=field.metadata)
    if kind == "uuid":
        return dataclasses.field(default=None, metadata=field.metadata)
    return _same_field(field)


def _merged_type(annotation: Any, merged: dict[str, type[Any]]) -> Any:
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return merged.get(annotation.__name__, annotation)
    arguments = typing.get_args(annotation)
    if not arguments:
        return annotation
    replaced = tuple(_merged_type(argument, merged) for argument in arguments)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return functools.reduce(operator.or_, replaced)
    return typing.get_origin(annotation)[replaced]


def message_class(api: Api, side: str) -> type[Any]:
    """The neutral class of a whole request or response."""
    return list(load(api, side).values())[-1]


def __getattr__(name: str) -> _LazyModule:
    api_name, _, side = name.rpartition("_")
    if side in ("request", "response") and api_name.upper() in Api.__members__:
        module = _LazyModule(f"{__name__}.{name}", Api[api_name.upper()], side)
        globals()[name] = module
        return module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
