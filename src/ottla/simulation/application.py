"""An application on a virtual clock: both threads of a consumer, and the program that uses it.

Owns the stand-ins for the application's thread and the network thread. Must not know the test. Invariant: all happens in events of
the clock.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, NamedTuple

from ottla.client.assembly import ConsumerAssembly
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.listeners import Listeners
from ottla.client.calls.mailbox import Await, Wait
from ottla.client.events import WakeupRequested
from ottla.config import ConsumerConfig
from ottla.errors import ClosedError, OttlaError
from ottla.records import Record
from ottla.simulation.broker import Brokers
from ottla.simulation.clock import Clock
from ottla.simulation.link import Link
from ottla.simulation.network import Network
from ottla.simulation.zookeeper_server import HOST as ZOOKEEPER, SimZooKeeper, SimZooKeeperClient
from ottla.types import Now, TopicPartition
from ottla.zookeeper.session import Disconnect, Perform, SessionReport


class Thread(enum.Enum):
    """The threads of a client."""

    APPLICATION = "runs the public calls and the user's code"
    NETWORK = "runs the core"


class Sleep(NamedTuple):
    """Yielded by an application that does something else than use its consumer, for ``duration`` milliseconds."""

    duration: int


Program = Generator[Wait | Await | Sleep, Now, Any]
"""An application: it yields what its calls yield, and ``Sleep``. No listener here is a coroutine, so ``Await`` does not occur."""


class App:
    """One application: a consumer and the program that uses it."""

    def __init__(
        self,
        name: str,
        config: ConsumerConfig,
        clock: Clock,
        network: Network,
        broker: Brokers,
        zookeeper: SimZooKeeper,
        chance: random.Random,
    ) -> None:
        self.name = name
        self.alive = True
        self.lag = 0
        """Milliseconds before the network thread looks at a command: what is submitted meanwhile comes to it in the same pass."""
        self.eager = False
        """Whether the network thread looks at each command before the application takes another step."""
        self.pause = 0
        """Milliseconds between the notifications of a pass of the network thread and the rest of the pass."""
        self.checked_passes = 1
        """One in this many passes of the network thread is checked for work that it has left."""
        self.handled: list[Record] = []
        """Records that the program was done with."""
        self.listener_calls: list[tuple[str, list[TopicPartition]]] = []
        """The calls of listeners: which one, and its partitions."""
        self.stop = False
        """Asks ``member`` to end."""
        self.errors: list[Exception] = []
        """The exceptions that ``member`` has caught."""
        self.config = config
        self._sleeping = False
        self.is_stopped = False
        self.has_ended = False
        """Whether the consumer was closed."""
        self._held: list[tuple[Thread, Callable[[], None]]] = []
        """What happens when the process continues."""
        self._clock = clock
        self._inbox: list[object] = []
        self._notifications: list[Any] = []
        self._pass_due: int | None = None
        self._passes = 0
        self._halfway = False
        self._program: Program | None = None
        self._wait_number = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.calls = ConsumerCalls(config, self._submit, self._drain)
        self._shared = self.calls.shared
        self.assembly = ConsumerAssembly(config, chance, self._shared, name)
        self.link = self._new_link(network, broker)
        self.numbers = self.link.numbers
        """The client's id of each connection -> its number in the network."""
        self._zookeeper: SimZooKeeperClient | None = None
        if self.assembly.core.session is not None:
            timeout = config.zookeeper_session_timeout_ms
            self._zookeeper = zookeeper.client(name, timeout, self._report, partial(self._when_running, Thread.NETWORK))
            network.add_host(name, self._on_heal)

    def _new_link(self, network: Network, broker: Brokers) -> Link:
        return Link(
            self.name,
            self.assembly.core.connections,
            self._clock,
            network,
            broker,
            alive=lambda: self.alive,
            run=partial(self._when_running, Thread.NETWORK),
            pass_soon=partial(self._pass_soon, 0),
        )

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
        if self._zookeeper is not None:
            self._zookeeper.start()
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
        self._clock.acting = self.name
        try:
            wait = next(program) if first else program.send(self.now)
        except StopIteration as done:
            self._program, self.result = None, done.value
            if self._shared.closed:
                self._end_network_thread()
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
        if self.is_stopped:
            self._held.append((Thread.APPLICATION, partial(self._resume_if, number)))
        elif number == self._wait_number:
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
        if self.has_ended:
            return
        due = self.now.mono + delay
        if self._pass_due is None or due < self._pass_due:
            self._pass_due = due
            self._clock.after(delay, lambda: self._pass(due))

    def _pass(self, due: int) -> None:
        if self.is_stopped:
            self._held.append((Thread.NETWORK, partial(self._pass, due)))
            return
        if due != self._pass_due or not self.alive:
            return
        self._pass_due = None
        self._clock.acting = self.name
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
        if self.is_stopped:
            self._held.append((Thread.NETWORK, self._go_on))
            return
        self._halfway = False
        if not self.alive or self.has_ended:
            return
        self._clock.acting = self.name
        effects, wake_at, self._shared.deferrable = self.assembly.core.poll(self.now)
        for effect in effects:
            self._perform(effect)
        self._pass_notifications()
        self._passes += 1
        if self._passes % self.checked_passes == 0 and (wake_at is None or wake_at > self.now.mono):
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
        match effect:
            case Perform(number, operation):
                assert self._zookeeper is not None
                self._zookeeper.perform(number, operation)
            case Disconnect():
                assert self._zookeeper is not None
                self._zookeeper.disconnect()
            case _:
                self.link.perform(effect)

    def _report(self, report: SessionReport) -> None:
        """Take a report of the ZooKeeper client."""
        self._inbox.append(report)
        self._pass_soon(0)

    def _on_heal(self, peer: str) -> None:
        if peer == ZOOKEEPER and self._zookeeper is not None:
            self._zookeeper.on_heal()

    def _end_network_thread(self) -> None:
        """End the network thread, as after ``close()``: its connections end, and so does its session with ZooKeeper."""
        for effect in self.assembly.core.shut_down(ClosedError("the client was closed"), self.now):
            self._perform(effect)
        if self._zookeeper is not None:
            self._zookeeper.close()
        self._pass_due, self.has_ended = None, True

    # -- the process ------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process: its connections break without a request to leave, after what it had sent before."""
        self.alive = False
        self.link.hang_up()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def sigstop(self) -> None:
        """Stop both threads, as SIGSTOP does. What arrives waits in buffers."""
        self.is_stopped = True

    def sigcont(self, first: Thread) -> None:
        """Let the threads continue. ``first``: the one that runs before the other."""
        self.is_stopped = False
        held, self._held = self._held, []
        for _, action in sorted(held, key=lambda one: one[0] is not first):
            self._clock.after(0, action)

    def _when_running(self, thread: Thread, action: Callable[[], None]) -> None:
        """Run an action of a thread now, or when the process continues."""
        if self.is_stopped:
            self._held.append((thread, partial(self._when_running, thread, action)))
        elif self.alive:
            self._clock.acting = self.name
            action()


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
