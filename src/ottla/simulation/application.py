"""An application on a virtual clock: both threads of a consumer, and the program that uses it.

Owns the stand-ins for the application's thread and the network thread, and the client's end of the link. Must not know the test.
Invariant: all happens in events of the clock. The link carries the real bytes of the wire protocol.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple, cast

from ottla.client.assembly import ConsumerAssembly
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.listeners import Listeners
from ottla.client.calls.mailbox import Await, Wait
from ottla.client.effects import Close, Connect, ToCoordinator, Write
from ottla.client.events import WakeupRequested
from ottla.config import ConsumerConfig
from ottla.errors import OttlaError
from ottla.records import Record
from ottla.simulation.broker import LATENCY, SimBroker
from ottla.simulation.clock import Clock
from ottla.types import Now, TopicPartition


class Sleep(NamedTuple):
    """Yielded by an application that does something else than use its consumer, for ``duration`` milliseconds."""

    duration: int


Program = Generator[Wait | Await | Sleep, Now, Any]
"""An application: it yields what its calls yield, and ``Sleep``. No listener here is a coroutine, so ``Await`` does not occur."""


class App:
    """One application: a consumer and the program that uses it."""

    def __init__(self, name: str, config: ConsumerConfig, clock: Clock, broker: SimBroker, chance: random.Random) -> None:
        self.name = name
        self.alive = True
        self.connected = True
        self.lag = 0
        """Milliseconds before the network thread looks at a command: what is submitted meanwhile comes to it in the same pass."""
        self.eager = False
        """Whether the network thread looks at each command before the application takes another step."""
        self.pause = 0
        """Milliseconds between the notifications of a pass of the network thread and the rest of the pass."""
        self.handled: list[Record] = []
        """Records that the program was done with."""
        self.listener_calls: list[tuple[str, list[TopicPartition]]] = []
        """The calls of listeners: which one, and its partitions."""
        self.stop = False
        """Asks ``member`` to end."""
        self.errors: list[Exception] = []
        """The exceptions that ``member`` has caught."""
        self._sleeping = False
        self._clock = clock
        self._broker = broker
        self._inbox: list[object] = []
        self._notifications: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._held: dict[int, int] = {}
        """Connection -> until when the broker does not read it."""
        self._pass_due: int | None = None
        self._halfway = False
        self._program: Program | None = None
        self._wait_number = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.calls = ConsumerCalls(config, self._submit, self._drain)
        self._shared = self.calls.shared
        self.assembly = ConsumerAssembly(config, chance, self._shared)

    # -- the application thread -------------------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return self._clock.now

    @property
    def membership(self) -> Any:
        """The state machine of the member, of whichever protocol."""
        return self.assembly.membership

    @property
    def running(self) -> bool:
        return self._program is not None

    def start(self, program: Program) -> None:
        """Start a program; its first step runs at once."""
        assert self._program is None
        self._program, self.result, self.error = program, None, None
        self._resume(first=True)

    def listeners(self) -> Listeners:
        """Listeners that record their calls."""
        return Listeners(
            on_assign=lambda partitions: self.listener_calls.append(("assign", partitions)),
            on_revoke=lambda partitions: self.listener_calls.append(("revoke", partitions)),
            on_lost=lambda partitions: self.listener_calls.append(("lost", partitions)),
        )

    def inside(self, call: Program) -> Any:
        """Run a call of a listener to its end, as ``Consumer`` does on a real thread; the program does not run meanwhile."""
        self._wait_number += 1
        self._sleeping = True
        try:
            wait = next(call)
            while True:
                assert isinstance(wait, Wait)
                until = self.now.mono + 600_000 if wait.until is None else wait.until
                while not self._notifications and self._clock.step(until):
                    pass
                wait = call.send(self.now)
        except StopIteration as done:
            return done.value

    def busy(self, duration: int) -> None:
        """Let time pass inside a listener (milliseconds), which blocks this application's thread."""
        self._wait_number += 1
        self._sleeping = True
        self._clock.run(duration)

    def wakeup(self) -> None:
        """Call ``wakeup()`` as another thread does."""
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
        assert not isinstance(wait, Await)
        self._sleeping = isinstance(wait, Sleep)
        until = self.now.mono + wait.duration if isinstance(wait, Sleep) else wait.until
        number = self._wait_number
        if until is not None:
            self._clock.at(until, lambda: self._resume_if(number))
        if not self._sleeping and self._notifications:
            self._notified()

    def _resume_if(self, number: int) -> None:
        if number == self._wait_number:
            self._resume()

    def _notified(self) -> None:
        """A notification wakes a call that waits, but no program that sleeps."""
        if self._program is not None and not self._sleeping:
            number = self._wait_number
            self._clock.after(0, lambda: self._resume_if(number))

    def _submit(self, command: object) -> None:
        self._inbox.append(command)
        if type(command) not in self._shared.deferrable:
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
            self._clock.after(delay, lambda: self._pass(due))

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
        if self._pass_notifications():
            self._halfway = True  # like the real thread: the application may act on the notifications first
            self._clock.after(self.pause, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._halfway = False
        if not self.alive:
            return
        effects, wake_at, self._shared.deferrable = self.assembly.core.poll(self.now)
        for effect in effects:
            self._perform(effect)
        self._pass_notifications()
        if wake_at is None or wake_at > self.now.mono:
            self._check_that_nothing_is_left(wake_at)
        if any(type(command) not in self._shared.deferrable for command in self._inbox):
            self._pass_soon(0)
        if wake_at is not None:
            self._pass_soon(max(0, wake_at - self.now.mono))

    def _check_that_nothing_is_left(self, wake_at: int | None) -> None:
        """Check that one pass does all that is due: no later event may start a second one."""
        effects, again_at, deferrable = self.assembly.core.poll(self.now)
        assert not effects, effects
        assert again_at is None or (wake_at is not None and again_at >= wake_at), f"wakes at {again_at}, it said at {wake_at}"
        assert deferrable == self._shared.deferrable
        notifications = self.assembly.core.take_notifications()
        assert not notifications, notifications

    def _pass_notifications(self) -> bool:
        """Pass notifications to the application; returns whether there were any."""
        notifications = self.assembly.core.take_notifications()
        if notifications:
            self._notifications += notifications
            self._notified()
        return bool(notifications)

    def _perform(self, effect: Any) -> None:
        after = self._clock.after
        broker = self._broker
        match effect:
            case Connect(connection_id, _, _):
                number = self._numbers[connection_id] = next(broker.connection_numbers)
                after(LATENCY, lambda: self._connect(connection_id, number))
            case Write(connection_id, pieces):
                data = b"".join(cast("list[bytes]", pieces))
                number = self._numbers[connection_id]
                after(self._delay(number), lambda: broker.receive(number, data) if self.connected and self.alive else None)
            case Close(connection_id, _):
                number = self._numbers.pop(connection_id, -1)
                after(self._delay(number), lambda: broker.hang_up(number) if broker.up else None)
            case _:
                raise AssertionError(effect)

    def _connect(self, connection_id: int, number: int) -> None:
        if not self.alive or connection_id not in self._numbers:
            return
        connections = self.assembly.core.connections
        if self._broker.up and self.connected:
            self._broker.accept(self, number)
            connections.on_connected(connection_id, self.now)
        elif self.connected:
            connections.on_connect_failed(connection_id, "connection refused", self.now)
        self._pass_soon(0)

    def deliver(self, number: int, data: bytes) -> None:
        """Receive bytes from the broker."""
        connection_id = self._connection_id(number)
        if self.alive and self.connected and connection_id is not None:
            self.assembly.core.connections.receive(connection_id, data, self.now)
            self._pass_soon(0)

    def lose(self, number: int, reason: str) -> None:
        """Handle the loss of a connection."""
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
        """The broker does not read the connection to it for a while; then it reads all that has arrived, and the close.

        Kafka does not read a connection before it has answered its last request; then it reads the rest, even if the client has
        closed the connection.
        """
        self._held[self._number_of(target)] = self.now.mono + duration

    def lose_coordinator(self) -> None:
        """Break the connection to the coordinator."""
        target = self.assembly.coordinator.target()
        assert target is not None
        number = self._number_of(target)
        self._broker.hang_up(number)
        self.lose(number, "the test broke it")

    def _number_of(self, target: ToCoordinator) -> int:
        connection = self.assembly.core.connections.brokers.get(target)
        assert connection is not None
        assert connection.connection_id is not None
        return self._numbers[connection.connection_id]

    def cut(self) -> None:
        """Cut the network: from now on no byte passes in either direction, and no connection is closed."""
        self.connected = False

    def heal(self) -> None:
        """Restore the network; the old connections break, since bytes were lost."""
        if not self.connected:
            self.connected = True
            for number in list(self._numbers.values()):
                self._broker.hang_up(number)
                self.lose(number, "the network was away")

    def kill(self) -> None:
        """Kill the process: its connections break without a request to leave."""
        self.alive = False
        for number in self._numbers.values():
            self._broker.hang_up(number)


def member(
    app: App,
    topics: Iterable[str] = ("t",),
    *,
    pattern: str | None = None,
    work: int = 10,
    commits: bool = False,
    timeout: int = 500,
) -> Program:
    """A member of a group that handles records until ``app.stop`` is set: ``work`` ms after each poll, then maybe a commit."""
    yield from app.calls.subscribe(() if pattern is not None else topics, app.listeners(), app.now, pattern)
    while not app.stop:
        try:
            records = yield from app.calls.poll(timeout, app.now)
            taken = {TopicPartition(record.topic, record.partition) for record in records} - app.calls.owned
            assert not taken, f"{app.name} was given records of {taken}, which were revoked from it"
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
