"""The history of a run as text: one line for each thing that happens.

Owns the form of the lines, and which requests are worth one. Must not know why it happens. Invariant: a trace changes nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.records import Record
from ottla.simulation.broker import Exchange
from ottla.simulation.clock import Clock
from ottla.simulation.world import World
from ottla.simulation.zookeeper import Executed
from ottla.types import TopicPartition
from ottla.zookeeper.operations import Exists, Multi, Operation

Write = Callable[[str], None]

_ROUTINE = frozenset({Api.API_VERSIONS, Api.FETCH, Api.HEARTBEAT, Api.METADATA, Api.CONSUMER_GROUP_HEARTBEAT})
"""Requests that are only worth a line if they have an error, or a new assignment."""


class Trace:
    """Writes lines with the time since the beginning."""

    def __init__(self, clock: Clock, write: Write) -> None:
        self._clock = clock
        self._write = write
        self._began = clock.now.mono

    def line(self, who: str, text: str) -> None:
        """Write that something happens to ``who``."""
        since = self._clock.now.mono - self._began
        self._write(f"{since // 1000:5}.{since % 1000:03} {who:12} {text}")

    def follow_brokers(self, world: World) -> None:
        """Write what brokers answer."""
        world.broker.observers.append(self._on_exchange)

    def follow_zookeeper(self, world: World) -> None:
        """Write what ZooKeeper answers."""
        world.zookeeper.observers.append(self._on_operation)

    def records(self, who: str, records: Iterable[Record]) -> None:
        """Write which records a member is done with."""
        for tp, some in groupby(records, key=lambda record: TopicPartition(record.topic, record.partition)):
            offsets = [record.offset for record in some]
            self.line(who, f"has handled {tp} {offsets[0]} to {offsets[-1]}")

    def _on_exchange(self, exchange: Exchange) -> None:
        errors = sorted({code.name for code in _errors_in(exchange.response)})
        assignment = getattr(exchange.response, "assignment", None)
        if errors or assignment or exchange.api not in _ROUTINE:
            outcome = ", ".join(errors) or "done"
            self.line(exchange.client, f"{exchange.api.name} to broker {exchange.node_id}: {outcome}")

    def _on_operation(self, session_id: int, operation: Operation[Any], executed: Executed) -> None:
        if operation == Exists("/"):
            return
        outcome = "done" if executed.error is None else executed.error.code.name
        name = type(operation).__name__
        if isinstance(operation, Multi):
            name += f" of {len(operation.operations)}"
            where = executed.error.path if executed.error is not None else operation.operations[-1].path
        else:
            where = operation.path
        self.line(f"session {session_id}", f"{name} {where}: {outcome}")


class LogLines(logging.Handler):
    """Adds what the cores log."""

    def __init__(self, trace: Trace, clock: Clock) -> None:
        super().__init__(logging.DEBUG)
        self._trace = trace
        self._clock = clock

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self._trace.line(self._clock.acting, record.getMessage())


def _errors_in(message: Any) -> Iterator[ErrorCode]:
    """The errors anywhere in a response."""
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if isinstance(value, ErrorCode):
            if value is not ErrorCode.none:
                yield value
        elif isinstance(value, tuple):
            for item in value:
                if dataclasses.is_dataclass(item):
                    yield from _errors_in(item)
