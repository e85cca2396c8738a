"""The history of a run as text: what the run is, then one line for each thing that happens.

Owns the form of the lines, and which requests are worth one. Must not know why it happens. Invariants: a trace changes nothing;
each line of what happens has a time and a host, or what stands for one.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Any

from ottla.protocol.apis import Api
from ottla.records import Record
from ottla.simulation.broker import Exchange
from ottla.simulation.clock import Clock
from ottla.simulation.judge import offset_writes
from ottla.simulation.requests import errors_in, offsets_in
from ottla.simulation.world import World
from ottla.simulation.zookeeper import Executed
from ottla.types import TopicPartition
from ottla.zookeeper.operations import Exists, Multi, Operation, Sync

Write = Callable[[str], None]

_ROUTINE = frozenset({Api.API_VERSIONS, Api.FETCH, Api.HEARTBEAT, Api.METADATA, Api.CONSUMER_GROUP_HEARTBEAT})
"""Requests that are only worth a line if they have an error, or a new assignment."""


class Trace:
    """Writes lines with the time since the beginning; without ``write`` it does nothing."""

    def __init__(self, clock: Clock, write: Write | None) -> None:
        self._clock = clock
        self._write = write
        self._began: int | None = None
        """When the head was written. What brokers do until they find each other is no part of the run."""
        self._sessions: set[int] = set()
        """The sessions with ZooKeeper whose members are known to the reader."""

    def head(self, lines: Iterable[str]) -> None:
        """Write what does not change in the run."""
        self._began = self._clock.now.mono
        if self._write is not None:
            for line in lines:
                self._write(line)

    def line(self, who: str, text: str) -> None:
        """Write that something happens to ``who``."""
        if self._write is not None and self._began is not None:
            since = self._clock.now.mono - self._began
            self._write(f"{since // 1000:5}.{since % 1000:03} {who:12} {one_line(text)}")

    def follow_brokers(self, world: World) -> None:
        """Write what brokers answer."""
        if self._write is not None:
            world.broker.observers.append(partial(self._on_exchange, world))

    def follow_zookeeper(self, world: World) -> None:
        """Write what ZooKeeper answers, before other observers judge it."""
        if self._write is not None:
            world.zookeeper.observers.insert(0, partial(self._on_operation, world))

    def records(self, who: str, records: Iterable[Record]) -> None:
        """Write which records a member is done with."""
        for tp, some in groupby(records, key=lambda record: TopicPartition(record.topic, record.partition)):
            offsets = [record.offset for record in some]
            self.line(who, f"has handled {tp} {offsets[0]} to {offsets[-1]}")

    def _on_exchange(self, world: World, exchange: Exchange) -> None:
        errors = sorted({code.name for code in errors_in(exchange.response)})
        assignment = getattr(exchange.response, "assignment", None)
        if errors or assignment or exchange.api not in _ROUTINE:
            outcome = ", ".join(errors) or "done"
            name = exchange.api.name
            if exchange.api is Api.OFFSET_COMMIT:
                name += f" of {_text(offsets_in(exchange.request, world.broker.topic_name))}"
            self.line(exchange.client, f"{name} to broker {exchange.node_id}: {outcome}")

    def _on_operation(self, world: World, session_id: int, operation: Operation[Any], executed: Executed) -> None:
        if operation == Exists("/") or (world.brokers is not None and isinstance(operation, Sync)):
            return
        if session_id not in self._sessions:
            self._name_session(world, session_id)
        outcome = "done" if executed.error is None else executed.error.code.name
        name = type(operation).__name__
        if isinstance(operation, Multi):
            name += f" of {len(operation.operations)}"
            where = executed.error.path if executed.error is not None else operation.operations[-1].path
        else:
            where = operation.path
        written = _text((tp, write.data.decode(errors="replace")) for tp, write in offset_writes(operation))
        self.line(f"session {session_id}", f"{name} {where}{f' ({written})' if written else ''}: {outcome}")

    def _name_session(self, world: World, session_id: int) -> None:
        """Write whose session it is. One whose process has not heard of it yet waits."""
        for broker in world.brokers.running if world.brokers is not None else ():
            if broker.session_id == session_id:
                self._sessions.add(session_id)
                self.line(broker.host, f"has session {session_id}")
        for app in world.apps.values():
            session = app.assembly.core.session
            if session is not None and session.session_id == session_id:
                self._sessions.add(session_id)
                self.line(app.name, f"has session {session_id}")


class LogLines(logging.Handler):
    """Adds what the cores log."""

    def __init__(self, trace: Trace, clock: Clock) -> None:
        super().__init__(logging.DEBUG)
        self._trace = trace
        self._clock = clock

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message, and the traceback of an exception."""
        self._trace.line(self._clock.acting, record.getMessage())
        if record.exc_info:
            for line in "".join(traceback.format_exception(*record.exc_info)).splitlines():
                self._trace.line(self._clock.acting, line)


def one_line(text: str) -> str:
    """Return ``text`` with ``\\n`` in place of its line breaks."""
    return "\\n".join(text.splitlines())


def _text(offsets: Iterable[tuple[TopicPartition, object]]) -> str:
    return " ".join(f"{tp}={offset}" for tp, offset in offsets)
