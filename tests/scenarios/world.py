"""A small world without threads: consumers' cores and a broker's core on an in-memory link, under a virtual clock.

Owns time, the link, and the actors that stand for applications. Must not know what is tested. Invariant: the same calls give the
same history; nothing happens but by an event of the clock. The bytes on the link are the wire's: both sides run their whole
protocol.

The broker keeps its data in real files, so that it can be killed and started again on what it wrote.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ottla.broker.config import broker_config
from ottla.broker.core import BrokerCore
from ottla.broker.effects import CancelTimer, CloseConnection, HalfReply, NoReply, Reply, RunJob, SetTimer, Struck
from ottla.broker.faults.rules import Action, AddFault, ExpireMember, Match, RemoveFaults, Rule
from ottla.broker.holdings import Endpoint
from ottla.client.assembly import ConsumerAssembly
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.mailbox import Wait
from ottla.client.calls.rebalancing import Listeners
from ottla.client.connections.connections import Close, Connect, Write
from ottla.client.effects import ToCoordinator
from ottla.client.notifications import WakeupRequested
from ottla.config import ConsumerConfig
from ottla.errors import OttlaError
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader, decode_request, encode_response
from ottla.protocol.framing import FrameReader, Piece
from ottla.records import NewRecord, Record, encode_batch
from ottla.runtime.data_dir import DataDir
from ottla.runtime.timers import Timers
from ottla.types import Now, TopicPartition

ADDRESS = ("127.0.0.1", 9092)
LATENCY = 1
"""Milliseconds from one end of the link to the other."""

START = Now(1_000_000, 1_700_000_000_000)


QUICK_GROUPS: dict[str, object] = {
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.assignment.interval.ms": 0,
}
"""Settings of a broker whose consumer groups beat as quickly as the classic ones here."""


class Sleep(NamedTuple):
    """What an application yields while it is busy with something else than its consumer (milliseconds)."""

    duration: int


Program = Generator[Wait | Sleep, Now, Any]
"""An application: it yields what its calls yield, and ``Sleep``."""


class Clock:
    """Events in the order of their time."""

    def __init__(self) -> None:
        self.now = START
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, delay: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now.mono + delay, next(self._count), action))

    def at(self, mono: int, action: Callable[[], None]) -> None:
        self.after(max(0, mono - self.now.mono), action)

    def step(self, until: int) -> bool:
        """The next event, if it comes before ``until``."""
        if not self._events or self._events[0][0] > until:
            self._move(until)
            return False
        at, _, action = heapq.heappop(self._events)
        self._move(at)
        action()
        return True

    def set_wall(self, by: int) -> None:
        """Someone sets the clock on the wall, forward or back (milliseconds)."""
        self.now = Now(self.now.mono, self.now.wall + by)

    def _move(self, mono: int) -> None:
        self.now = Now(mono, self.now.wall + mono - self.now.mono)


class CountingIds:
    def __init__(self) -> None:
        self._last = 0

    def new_uuid(self) -> uuid.UUID:
        self._last += 1
        return uuid.UUID(int=self._last)

    def new_id(self) -> str:
        return str(self.new_uuid())


class _Connection:
    """The broker's end of one connection: requests are handled one after the other, as Kafka does."""

    def __init__(self, app: App, number: int) -> None:
        self.app = app
        self.number = number
        self.reader = FrameReader()
        self.requests: deque[tuple[RequestHeader, Any]] = deque()
        self.busy: RequestHeader | None = None


class SimBroker:
    """A broker's core with its timers, jobs and connections."""

    def __init__(self, world: World, path: Path, settings: dict[str, object]) -> None:
        self.up = False
        self.seen: list[tuple[int, Api, Any]] = []
        """Every request, with the time at which it was handled."""
        self._world = world
        self._path = path
        self._settings = settings
        self._ids = CountingIds()
        self._faults = itertools.count(1)
        self.struck = 0
        self._life = 0
        self.start()

    def start(self) -> None:
        """Start, on whatever an earlier life has written."""
        self._life += 1
        self._store = DataDir(self._path, 1)
        self.core = BrokerCore(broker_config(self._settings), Endpoint(*ADDRESS), self._store, self._ids)
        self._timers = Timers()
        self._connections: dict[int, _Connection] = {}
        self._tickets: dict[int, _Connection | None] = {}
        self._answers: dict[int, Any] = {}
        self._last_ticket = self._life * 1_000_000
        self.up = True
        self._take(self.core.start(self._world.now)[1])

    def kill(self) -> None:
        """As kill -9 does: files stay, connections break."""
        self.up = False
        self._life += 1
        self._store.release()
        for connection in list(self._connections.values()):
            connection.app.lose(connection.number, "the broker died")
        self._connections.clear()

    def set_fault(self, action: Action, *apis: Api, times: int | None = 1, after: int = 0, **match: str) -> None:
        """Do something wrong; ``struck`` counts how often."""
        rule = Rule(next(self._faults), action, Match(frozenset(apis), **match), times, after)
        self._take(self.core.on_command(AddFault(rule), self._world.now)[1])

    def expire(self, command: ExpireMember) -> int:
        """Let members' sessions be over; returns how many."""
        count, effects = self.core.on_command(command, self._world.now)
        self._take(effects)
        return count

    def clear_faults(self) -> None:
        """Be sound again."""
        self._take(self.core.on_command(RemoveFaults(), self._world.now)[1])

    def ask(self, api: Api, message: Any) -> Any:
        """A request of the test itself, answered at once."""
        ticket = self._ticket(None)
        header = RequestHeader(api, SPOKEN[api].maximum, ticket, "test")
        self._take(self.core.handle(header, message, ticket, -1, "127.0.0.1", self._world.now))
        return self._answers.pop(ticket)

    def accept(self, app: App, number: int) -> None:
        self._connections[number] = _Connection(app, number)

    def hang_up(self, number: int) -> None:
        if self._connections.pop(number, None) is not None:
            self._take(self.core.on_disconnect(number, self._world.now))

    def receive(self, number: int, data: bytes) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        for frame in connection.reader.feed(data):
            connection.requests.append(decode_request(frame))
        self._next_request(connection)

    def _next_request(self, connection: _Connection) -> None:
        if connection.busy is not None or not connection.requests:
            return
        header, message = connection.requests.popleft()
        connection.busy = header
        self.seen.append((self._world.now.mono, header.api, message))
        ticket = self._ticket(connection)
        self._take(self.core.handle(header, message, ticket, connection.number, "127.0.0.1", self._world.now))

    def _ticket(self, connection: _Connection | None) -> int:
        self._last_ticket += 1
        self._tickets[self._last_ticket] = connection
        return self._last_ticket

    def _take(self, effects: list[Any]) -> None:
        for effect in effects + self.core.write_decided(self._world.now):
            match effect:
                case Reply(ticket, response):
                    self._reply(ticket, response)
                case NoReply(ticket):
                    self._tickets.pop(ticket)
                case CloseConnection(ticket, reason):
                    assert "broker.faults" in reason, f"the broker closed a connection: {reason}"
                    self._drop(self._tickets.pop(ticket), reason)
                case HalfReply(ticket, _):
                    # What comes of an answer is no message before it is whole.
                    self._drop(self._tickets.pop(ticket), "broker.faults cut an answer")
                case Struck():
                    self.struck += 1
                case RunJob(tag, job):
                    self._soon(0, lambda tag=tag, job=job: self._take(self.core.on_job(tag, job(), self._world.now)))
                case SetTimer(key, at):
                    self._timers.set(key, at)
                    self._soon(max(0, at - self._world.now.mono), self._fire)
                case CancelTimer(key):
                    self._timers.cancel(key)
                case _:
                    raise AssertionError(effect)

    def _soon(self, delay: int, action: Callable[[], None]) -> None:
        life = self._life

        def unless_dead() -> None:
            if life == self._life:
                action()

        self._world.clock.after(delay, unless_dead)

    def _fire(self) -> None:
        while (key := self._timers.pop_due(self._world.now.mono)) is not None:
            self._take(self.core.on_timer(key, self._world.now))

    def _drop(self, connection: _Connection | None, reason: str) -> None:
        if connection is not None:
            self.hang_up(connection.number)
            connection.app.lose(connection.number, reason)

    def _reply(self, ticket: int, response: Any) -> None:
        connection = self._tickets.pop(ticket)
        if connection is None:
            self._answers[ticket] = response
            return
        header, connection.busy = connection.busy, None
        assert header is not None
        data = b"".join(_content(piece) for piece in encode_response(header, response))
        self._world.clock.after(LATENCY, lambda: connection.app.deliver(connection.number, data))
        self._soon(0, lambda: self._next_request(connection))


def _content(piece: Piece) -> bytes:
    """The bytes of a piece of a frame, be it in memory or in a file."""
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    found: Any = piece
    return os.pread(found.handle.fd, len(found), found.position)


class App:
    """One application: a consumer and the program that uses it."""

    def __init__(self, world: World, name: str, config: ConsumerConfig) -> None:
        self.name = name
        self.alive = True
        self.connected = True
        self.lag = 0
        """Milliseconds before the network thread looks at a command: what is submitted meanwhile comes to it in the same pass."""
        self.eager = False
        """Whether the network thread looks at each command before the application takes another step."""
        self.pause = 0
        """Milliseconds before the network thread, having told the application what was answered, goes on with its pass."""
        self.handled: list[Record] = []
        """Records that the program was done with."""
        self.told: list[tuple[str, list[TopicPartition]]] = []
        """What the listeners heard."""
        self.stop = False
        """Asks ``member`` to end."""
        self.errors: list[Exception] = []
        """What ``member`` lived through."""
        self._sleeping = False
        self._world = world
        self._inbox: list[object] = []
        self._notifications: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._held: dict[int, int] = {}
        """Connection -> until when the broker does not read it."""
        self._pass_due: int | None = None
        self._halfway = False
        self._may_wait: frozenset[type[Any]] = frozenset()
        self._program: Program | None = None
        self._wait_number = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.calls = ConsumerCalls(config, self._submit, self._drain)
        self.assembly = ConsumerAssembly(config, random.Random(world.seed * 1000 + len(world.apps)), self.calls.collector.in_hand)
        recorder = self.assembly.recorder
        self.calls.jobs.rebalancing = lambda: recorder is not None and recorder.under_way

    # -- the application thread -------------------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return self._world.now

    @property
    def running(self) -> bool:
        return self._program is not None

    def start(self, program: Program) -> None:
        """Begin with a program; its first step happens at once."""
        assert self._program is None
        self._program, self.result, self.error = program, None, None
        self._resume(first=True)

    def listeners(self) -> Listeners:
        """Listeners that write down what they hear."""
        return Listeners(
            on_assign=lambda partitions: self.told.append(("assign", partitions)),
            on_revoke=lambda partitions: self.told.append(("revoke", partitions)),
            on_lost=lambda partitions: self.told.append(("lost", partitions)),
        )

    def inside(self, call: Program) -> Any:
        """Run a call from inside a listener, to its end, as ``Consumer`` does on a real thread: the program itself stands still."""
        self._wait_number += 1
        self._sleeping = True
        try:
            wait = next(call)
            while True:
                assert isinstance(wait, Wait)
                until = self.now.mono + 600_000 if wait.until is None else wait.until
                while not self._notifications and self._world.clock.step(until):
                    pass
                wait = call.send(self.now)
        except StopIteration as done:
            return done.value

    def busy(self, duration: int) -> None:
        """Let time pass inside a listener (milliseconds): it is this application's thread that stands still."""
        self._wait_number += 1
        self._sleeping = True
        self._world.run(duration)

    def wakeup(self) -> None:
        """As from another thread."""
        self._notifications.append(WakeupRequested())
        self._notified()

    def _resume(self, *, first: bool = False) -> None:
        program = self._program
        if program is None or not self.alive:
            return
        self._wait_number += 1
        try:
            wait = next(program) if first else program.send(self.now)
        except StopIteration as done:
            self._program, self.result = None, done.value
            return
        except BaseException as error:
            self._program, self.error = None, error
            return
        self._sleeping = isinstance(wait, Sleep)
        until = self.now.mono + wait.duration if isinstance(wait, Sleep) else wait.until
        number = self._wait_number
        if until is not None:
            self._world.clock.at(until, lambda: self._resume_if(number))
        if not self._sleeping and self._notifications:
            self._notified()

    def _resume_if(self, number: int) -> None:
        if number == self._wait_number:
            self._resume()

    def _notified(self) -> None:
        """What was told wakes a call that waits, but no program that sleeps."""
        if self._program is not None and not self._sleeping:
            number = self._wait_number
            self._world.clock.after(0, lambda: self._resume_if(number))

    def _submit(self, command: object) -> None:
        self._inbox.append(command)
        if type(command) not in self._may_wait:
            self._pass_soon(self.lag)
            if self.eager and self._pass_due == self.now.mono:
                self._pass(self.now.mono)

    def _drain(self) -> list[Any]:
        taken, self._notifications = self._notifications, []
        return taken

    # -- the network thread -----------------------------------------------------------------------------------------------

    def _pass_soon(self, delay: int) -> None:
        due = self.now.mono + delay
        if self._pass_due is None or due < self._pass_due:
            self._pass_due = due
            self._world.clock.after(delay, lambda: self._pass(due))

    def _pass(self, due: int) -> None:
        if due != self._pass_due or not self.alive:
            return
        self._pass_due = None
        if self._halfway:
            self._pass_soon(self.pause)
            return
        core = self.assembly.core
        inbox, self._inbox = self._inbox, []
        for command in inbox:
            core.handle_command(command, self.now)
        core.deliver(self.now)
        if self._tell():
            self._halfway = True  # as the real thread does: the application may act on that first
            self._world.clock.after(self.pause, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._halfway = False
        if not self.alive:
            return
        effects, wake_at, self._may_wait = self.assembly.core.poll(self.now)
        for effect in effects:
            self._perform(effect)
        self._tell()
        if wake_at is None or wake_at > self.now.mono:
            self._check_that_nothing_is_left(wake_at)
        if any(type(command) not in self._may_wait for command in self._inbox):
            self._pass_soon(0)
        if wake_at is not None:
            self._pass_soon(max(0, wake_at - self.now.mono))

    def _check_that_nothing_is_left(self, wake_at: int | None) -> None:
        """One pass does all that can be done now: nothing else may come that makes a second one."""
        effects, again_at, may_wait = self.assembly.core.poll(self.now)
        assert not effects, effects
        assert again_at is None or (wake_at is not None and again_at >= wake_at), f"wakes at {again_at}, it said at {wake_at}"
        assert may_wait == self._may_wait
        told = self.assembly.core.take_notifications()
        assert not told, told

    def _tell(self) -> bool:
        """Tell the application what there is to tell; whether there was anything."""
        told = self.assembly.core.take_notifications()
        if told:
            self._notifications += told
            self._notified()
        return bool(told)

    def _perform(self, effect: Any) -> None:
        after = self._world.clock.after
        broker = self._world.broker
        match effect:
            case Connect(connection_id, _, _):
                number = self._numbers[connection_id] = next(self._world.connection_numbers)
                after(LATENCY, lambda: self._connect(connection_id, number))
            case Write(connection_id, pieces):
                data = b"".join(map(_content, pieces))
                number = self._numbers[connection_id]
                after(self._delay(number), lambda: self.connected and self.alive and broker.receive(number, data))
            case Close(connection_id, _):
                number = self._numbers.pop(connection_id, -1)
                after(self._delay(number), lambda: broker.up and broker.hang_up(number))
            case _:
                raise AssertionError(effect)

    def _connect(self, connection_id: int, number: int) -> None:
        if not self.alive or connection_id not in self._numbers:
            return
        connections = self.assembly.core.connections
        if self._world.broker.up and self.connected:
            self._world.broker.accept(self, number)
            connections.on_connected(connection_id, self.now)
        elif self.connected:
            connections.on_connect_failed(connection_id, "connection refused", self.now)
        self._pass_soon(0)

    def deliver(self, number: int, data: bytes) -> None:
        """Bytes from the broker."""
        connection_id = self._connection_id(number)
        if self.alive and self.connected and connection_id is not None:
            self.assembly.core.connections.receive(connection_id, data, self.now)
            self._pass_soon(0)

    def lose(self, number: int, reason: str) -> None:
        """The connection broke."""
        connection_id = self._connection_id(number)
        if self.alive and connection_id is not None:
            del self._numbers[connection_id]
            self.assembly.core.connections.on_closed(connection_id, reason, self.now)
            self._pass_soon(0)

    def _connection_id(self, number: int) -> int | None:
        return next((key for key, value in self._numbers.items() if value == number), None)

    def _delay(self, number: int) -> int:
        return max(LATENCY, self._held.get(number, 0) - self.now.mono)

    def hold(self, target: ToCoordinator, duration: int) -> None:
        """The broker does not read the connection to it for a while; then it reads all that came, and that it was closed.

        Kafka reads nothing more of a connection while it owes it an answer, and does read it in the end, whoever has closed it.
        """
        link = self.assembly.core.connections.links.get(target)
        self._held[self._numbers[link.connection_id]] = self.now.mono + duration

    def lose_coordinator(self) -> None:
        """The connection to the coordinator breaks."""
        coordinator = self.assembly.coordinator
        link = self.assembly.core.connections.links.get(coordinator.target())
        number = self._numbers[link.connection_id]
        self._world.broker.hang_up(number)
        self.lose(number, "the test broke it")

    def cut(self) -> None:
        """From now on it passes nothing in either direction, and closes no connection."""
        self.connected = False

    def heal(self) -> None:
        """The network is back; what was lost is lost, so the old connections break."""
        if not self.connected:
            self.connected = True
            for number in list(self._numbers.values()):
                self._world.broker.hang_up(number)
                self.lose(number, "the network was away")

    def kill(self) -> None:
        """The process is gone: its connections break, nothing is said."""
        self.alive = False
        for number in self._numbers.values():
            self._world.broker.hang_up(number)


class World:
    """One broker, some applications, one clock."""

    def __init__(self, path: Path, seed: int = 0, **settings: object) -> None:
        self.seed = seed
        self.clock = Clock()
        self.apps: dict[str, App] = {}
        self.connection_numbers = itertools.count(1)
        self.broker = SimBroker(self, path, settings)
        self.produced: dict[TopicPartition, int] = {}
        self.protocol = "classic"
        """What tests that run both protocols have their members speak."""

    @property
    def now(self) -> Now:
        return self.clock.now

    def create_topic(self, topic: str, partitions: int) -> None:
        from ottla.protocol import duration
        from ottla.protocol.messages import create_topics_request as messages

        wanted = messages.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
        answer = self.broker.ask(
            Api.CREATE_TOPICS, messages.CreateTopicsRequest(topics=(wanted,), timeout=duration(1000), validate_only=False)
        )
        assert not answer.topics[0].error_code, answer

    def grow(self, topic: str, partitions: int) -> None:
        """Let a topic have so many partitions."""
        from ottla.protocol import duration
        from ottla.protocol.messages import create_partitions_request as messages

        wanted = messages.CreatePartitionsTopic(name=topic, count=partitions, assignments=None)
        message = messages.CreatePartitionsRequest(topics=(wanted,), timeout=duration(1000), validate_only=False)
        answer = self.broker.ask(Api.CREATE_PARTITIONS, message)
        assert not answer.results[0].error_code, answer

    def delete_topic(self, topic: str) -> None:
        from ottla.protocol import duration
        from ottla.protocol.messages import delete_topics_request as messages

        named = messages.DeleteTopicState(name=topic, topic_id=None)
        answer = self.broker.ask(Api.DELETE_TOPICS, messages.DeleteTopicsRequest(topics=(named,), timeout=duration(1000)))
        assert not answer.responses[0].error_code, answer
        self.produced = {tp: count for tp, count in self.produced.items() if tp.topic != topic}

    def produce(self, topic: str, partition: int, count: int) -> None:
        """``count`` records, each its own offset as value."""
        from ottla.protocol import duration
        from ottla.protocol.messages import produce_request as messages

        tp = TopicPartition(topic, partition)
        start = self.produced.get(tp, 0)
        batch = encode_batch([NewRecord(None, b"%d" % offset) for offset in range(start, start + count)])
        self.produced[tp] = start + count
        topic_id = self.broker.core.topic(topic).topic_id
        data = messages.PartitionProduceData(index=partition, records=bytes(batch))
        answer = self.broker.ask(
            Api.PRODUCE,
            messages.ProduceRequest(
                transactional_id=None,
                acks=1,
                timeout=duration(1000),
                topic_data=(messages.TopicProduceData(name=topic, topic_id=topic_id, partition_data=(data,)),),
            ),
        )
        assert not answer.responses[0].partition_responses[0].error_code, answer

    def app(self, name: str, **settings: Any) -> App:
        """A new application. Quick timeouts, and no group unless one is named: then a classic one, unless said otherwise."""
        defaults: dict[str, Any] = {
            "bootstrap_servers": f"{ADDRESS[0]}:{ADDRESS[1]}",
            "auto_offset_reset": "earliest",
            "client_id": name,
        }
        if settings.get("group_id") is not None:
            defaults.update(group_protocol="classic", max_poll_interval_ms=20_000)
        if settings.get("group_id") is not None and settings.get("group_protocol", "classic") == "classic":
            defaults.update(session_timeout_ms=6_000, heartbeat_interval_ms=1_000)
        self.apps[name] = app = App(self, name, ConsumerConfig.parse({**defaults, **settings}))
        return app

    def run(self, duration: int) -> None:
        """Let time pass (milliseconds)."""
        until = self.now.mono + duration
        while self.clock.step(until):
            pass

    def run_until(self, condition: Callable[[], bool], limit: int = 60_000) -> None:
        """Until something holds; fails where it does not within ``limit``."""
        until = self.now.mono + limit
        while not condition():
            assert self.clock.step(until), f"not within {limit} ms"

    def call(self, app: App, program: Program, limit: int = 120_000) -> Any:
        """Run one call of an application that does nothing else, to its end."""
        app.start(program)
        self.run_until(lambda: not app.running, limit)
        if app.error is not None:
            raise app.error
        return app.result

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """What a group has committed, by partition; partitions without a commit are left out."""
        from ottla.protocol.messages import offset_fetch_request as messages

        topic_id = self.broker.core.topic(topic).topic_id
        wanted = messages.OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=tuple(range(partitions)))
        asked = messages.OffsetFetchRequestGroup(group_id=group, topics=(wanted,))
        answer = self.broker.ask(Api.OFFSET_FETCH, messages.OffsetFetchRequest(groups=(asked,), require_stable=False))
        found = answer.groups[0].topics[0].partitions
        return {item.partition_index: item.committed_offset for item in found if item.committed_offset >= 0}


def member(
    app: App,
    topics: Iterable[str] = ("t",),
    *,
    pattern: str | None = None,
    work: int = 10,
    commits: bool = False,
    timeout: int = 500,
) -> Program:
    """A member of a group that handles records until it is told to stop: ``work`` ms after each poll, then maybe a commit."""
    yield from app.calls.subscribe(() if pattern is not None else topics, app.listeners(), app.now, pattern)
    while not app.stop:
        try:
            records = yield from app.calls.poll(timeout, app.now)
            taken = {TopicPartition(record.topic, record.partition) for record in records} - app.calls.owned
            assert not taken, f"{app.name} was given records of {taken}, which it was told were taken from it"
            yield Sleep(work)
            app.handled.extend(records)
            if commits:
                yield from app.calls.commits.commit(None, 5_000, app.now)
        except OttlaError as error:
            app.errors.append(error)
            yield Sleep(work)
    yield from app.calls.close(10_000, app.now)


def offsets(records: Iterable[Record], partition: int) -> list[int]:
    """The offsets of one partition's records, in the order they came."""
    return [record.offset for record in records if record.partition == partition]
