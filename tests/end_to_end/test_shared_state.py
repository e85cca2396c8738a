"""The two threads of a consumer share its queue, its configuration and one ``SharedState``, and no other mutable object."""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ottla import Consumer
from ottla.client.calls.shared_state import SharedState
from ottla.runtime.network_thread import NotificationQueue
from ottla.types import FrozenMapping

CONTAINERS = (dict, list, set, deque)
METERS = ("PollMetrics", "Consumption", "Meter", "_Amount", "_Distances")


def parts(item: object) -> Iterator[object]:
    """The objects that an object refers to, as far as Python code can write to them or call them."""
    if isinstance(item, (dict, FrozenMapping)):
        yield from item.values()
    elif isinstance(item, (list, tuple, set, frozenset, deque)):
        yield from item
    elif isinstance(item, MethodType):
        yield item.__self__
    elif isinstance(item, FunctionType):
        yield from (cell.cell_contents for cell in item.__closure__ or ())
        yield from item.__defaults__ or ()
    elif is_ottlas(item):
        yield from vars(item).values() if hasattr(item, "__dict__") else ()
        slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
        yield from (getattr(item, name) for name in slots if hasattr(item, name))


def is_ottlas(item: object) -> bool:
    return type(item).__module__.startswith("ottla.") and not isinstance(item, (type, ModuleType, enum.Enum, BaseException))


def is_mutable(item: object) -> bool:
    if isinstance(item, CONTAINERS):
        return True
    if isinstance(item, FrozenMapping):
        return False
    frozen = dataclasses.is_dataclass(type(item)) and type(item).__dataclass_params__.frozen  # type: ignore[attr-defined]
    return is_ottlas(item) and not frozen and not isinstance(item, tuple)


def mutable(*roots: object, without: tuple[object, ...] = ()) -> dict[int, Any]:
    """The mutable objects that can be reached from these, by identity."""
    seen: dict[int, object] = {id(item): item for item in without}
    waiting, found = list(roots), {}
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if is_mutable(item):
            found[id(item)] = item
        waiting.extend(parts(item))
    return found


def test_the_threads_of_a_consumer_share_one_mutable_object(served: str, topic: Callable[..., str]) -> None:
    name = topic(2, "k:0", "k:1")
    with Consumer(bootstrap_servers=served, group_id=f"group-of-{name}", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([name])
        while not consumer.poll(1):
            pass
        consumer.commit()
        network, shared = consumer._network, consumer._shared
        application = mutable(consumer._calls, consumer._last_poll, without=(consumer,))
        others = mutable(consumer._monitor, without=(consumer,))
        assert network is not None
        of_network = mutable(network, without=(consumer,))
        agreed = {**mutable(shared), **mutable(network.notifications), **mutable(consumer._config)}
        assert any(isinstance(item, SharedState) for item in of_network.values())
        assert any(isinstance(item, NotificationQueue) for item in application.values())
        for one, other in ((application, of_network), (others, of_network), (others, application)):
            assert [item for key, item in one.items() if key in other and key not in agreed] == []
        kinds = {type(item).__name__ for item in mutable(shared).values()} - {"dict", "list"}
        assert kinds <= {"SharedState", "Delivery", "PartitionRecords", "Batch", "FrozenMapping", "Caller", *METERS}


def test_the_threads_of_a_consumer_with_streams_share_queues_beside_it(served: str, topic: Callable[..., str]) -> None:
    name = topic(2, "k:0", "k:1")
    with Consumer(bootstrap_servers=served, group_id=f"group-of-{name}", auto_offset_reset="earliest") as consumer:
        (stream,) = consumer.streams({name: 1})[name]
        assert [next(stream).offset, next(stream).offset] == [0, 1]
        consumer.commit()
        network, shared, driver = consumer._network, consumer._shared, consumer._streams
        assert network is not None
        assert driver is not None
        of_network = mutable(network, without=(consumer,))
        of_pump = mutable(consumer._calls, driver._thread, without=(consumer, network))
        of_stream = mutable(stream, without=(consumer,))
        others = mutable(consumer._monitor, without=(consumer,))
        agreed = {**mutable(shared), **mutable(network.notifications), **mutable(consumer._config)}
        for one, other in ((of_pump, of_network), (of_stream, of_network), (others, of_network), (others, of_pump)):
            assert [item for key, item in one.items() if key in other and key not in agreed] == []
        kinds = {type(item).__name__ for key, item in of_stream.items() if key in of_pump} - {"dict", "list", "set", "deque"}
        queues = {"PumpState", "StreamReader", "Streams", "StreamQueue", "Chunk", "Walk", "Record"}
        assert queues - {"Streams"} <= kinds
        assert kinds <= {*queues, "SharedState", "NotificationQueue", "PartitionRecords", "Batch", "Caller", *METERS}
